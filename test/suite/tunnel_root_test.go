package suite

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

// Tunnel packets are accepted from nodes only, and from each of them only from its own pods. The host outside sends
// crafted tunnel packets from an address that is not a node's and from one that is.
func TestRootTunnelBelievesNodesOnly(t *testing.T) {
	t.Run("tunnel over IPv4", func(t *testing.T) {
		believesNodesOnly(t, underlay.Dual, "10.77.200.0/24,fd77:0:0:200::/64", "192.168.77.200/24")
	})
	t.Run("tunnel over IPv6", func(t *testing.T) {
		believesNodesOnly(t, underlay.IPv6, "fd77:0:0:200::/64", "fd77::200/64")
	})
}

// believesNodesOnly makes the host outside also the node called second, with these podCIDRs and this address.
func believesNodesOnly(t *testing.T, family underlay.IPFamily, podCIDRs, address string) {
	c := up(t, lab.Options{IPFamily: family})
	c.addPods(t, "a@node1", "b@node1", "c@node2")
	c.warm(t)
	outside, node2 := c.host(t, underlay.Outside), c.host(t, "node2")
	node1At, node2At := family.NodeAddrs(1)[0].Addr().String(), family.NodeAddrs(2)[0].Addr().String()
	stranger, second := family.GatewayAddrs()[0].Addr().String(), netip.MustParsePrefix(address).Addr().String()
	outside.exec(t, "ip addr add "+address+" dev eth0"+map[bool]string{true: " nodad"}[family == underlay.IPv6])
	c.apply(t, nodeYAML("second", podCIDRs, second))
	wait(t, 5*time.Second, func() string { return c.lacksPeer(t, "node1", strings.Split(podCIDRs, ",")...) })

	a, b, far := c.pod(t, "a"), c.pod(t, "b"), c.pod(t, "c")
	ears := []*wire{tap(t, a, "eth0"), tap(t, c.host(t, "node1"), "fairlead-gw0"), tap(t, outside, "eth0"),
		tap(t, far, "eth0")}
	say := func(from place, outer string, src, dst netip.Addr, what string) packet {
		p := udp(src, dst, what+" from "+src.String()+" to "+dst.String())
		geneve(t, from, outer, node1At, ethernet(a.mac, far.mac, p))
		return p
	}
	var ofSecond []netip.Addr
	for cidr := range strings.SplitSeq(podCIDRs, ",") {
		ofSecond = append(ofSecond, unusedOf(netip.MustParsePrefix(cidr)))
	}
	var lies []packet
	for i, to := range a.ips {
		far, gateway := far.ips[i], gatewayOf(c.family.PodCIDRs(1)[i])
		lie := func(from place, outer string, src, dst netip.Addr, what string) {
			lies = append(lies, say(from, outer, src, dst, "lie: "+what))
		}
		for _, dst := range []netip.Addr{to, gateway} {
			lie(outside, stranger, far, dst, "a stranger")
			lie(outside, stranger, c.family.FarAddrs()[i].Addr(), dst, "a stranger about itself")
			lie(outside, second, far, dst, "second speaks for node2")
			lie(node2, node2At, ofSecond[i], dst, "node2 speaks for second")
			lie(node2, node2At, b.ips[i], dst, "node2 speaks for node1")
			lie(node2, node2At, gateway, dst, "node2 speaks for node1's gateway")
			lie(node2, node2At, c.family.FarAddrs()[i].Addr(), dst, "node2 speaks for the world")
		}
		// A node does not forward for others: not to the outside, not to itself, not to a third node.
		lie(node2, node2At, far, c.family.FarAddrs()[i].Addr(), "out through node1")
		lie(node2, node2At, far, c.family.NodeAddrs(1)[i].Addr(), "to node1 itself")
		lie(outside, second, ofSecond[i], far, "to node2 through node1")
	}
	for i, to := range a.ips {
		ears[0].expect(t, "what node2 says", say(node2, node2At, far.ips[i], to, "truth").mark)
		ears[0].expect(t, "what second says", say(outside, second, ofSecond[i], to, "truth").mark)
		gateway := gatewayOf(c.family.PodCIDRs(1)[i])
		ears[1].expect(t, "what node2 says", say(node2, node2At, far.ips[i], gateway, "truth").mark)
		// The paths of the other spoofed packets are open.
		for _, ear := range ears[2:] {
			dst := map[*wire]netip.Addr{ears[2]: c.family.FarAddrs()[i].Addr(), ears[3]: far.ips[i]}[ear]
			p := udp(a.ips[i], dst, "truth to "+dst.String())
			tap(t, a, "eth0").send(t, ethernet(c.host(t, "node1").macOf(t, "fairlead-gw0"), a.mac, p))
			ear.expect(t, "what a says", p.mark)
		}
	}
	for _, l := range lies {
		for _, ear := range ears {
			if f := ear.find(l.mark); f != nil {
				t.Errorf("%q came to %s: %x", l.mark, ear.name, f)
			}
		}
	}
}

// geneve sends a frame to the tunnel's port at an address (RFC 8926): version 0, no options, VNI 0.
func geneve(t *testing.T, from place, src, dst string, frame []byte) {
	t.Helper()
	var conn *net.UDPConn
	must(t, 0, from.do(func() (err error) {
		conn, err = net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP(src)}, &net.UDPAddr{IP: net.ParseIP(dst), Port: 6081})
		return err
	}))
	defer conn.Close()
	const transparentEthernet = 0x6558
	_, err := conn.Write(append([]byte{0, 0, transparentEthernet >> 8, transparentEthernet & 0xff, 0, 0, 0, 0}, frame...))
	must(t, 0, err)
}
