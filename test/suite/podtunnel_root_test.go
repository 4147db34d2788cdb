package suite

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/lab/lab"
)

// A pod cannot send tunnel packets: masqueraded they would come from its node, and the other node would accept the
// inner packets.
func TestRootPodsCannotTunnel(t *testing.T) {
	const transparentEthernet = "\x65\x58"
	for _, tunnel := range []struct {
		kind, network, to string
		header            string
	}{
		{"geneve", "udp4", "192.168.77.11:6081", "\x00\x00" + transparentEthernet + "\x00\x00\x00\x00"}, // RFC 8926
		{"vxlan", "udp4", "192.168.77.11:4789", "\x08\x00\x00\x00\x00\x00\x00\x00"},                     // RFC 7348
		{"gre", "ip4:47", "192.168.77.11", "\x20\x00" + transparentEthernet + "\x00\x00\x00\x00"},       // RFC 2890
	} {
		t.Run(tunnel.kind, func(t *testing.T) {
			c := up(t, lab.Options{Config: []byte("tunnelType: " + tunnel.kind)})
			c.addPods(t, "a@node1", "b@node1", "c@node2", "d@node2")
			c.warm(t)
			for _, node := range []string{"node1", "node2"} { // what flannel leaves behind
				c.host(t, node).exec(t, "iptables -w -I FORWARD -s 10.77.0.0/16 -j ACCEPT")
			}
			a, b, far, other := c.pod(t, "a"), c.pod(t, "b"), c.pod(t, "c"), c.pod(t, "d")
			ear := tap(t, b, "eth0")
			say := func(from place, what string) packet {
				p := udp(other.ips[0], b.ips[0], what) // not even the sender's own address
				var conn net.Conn
				must(t, 0, from.do(func() (err error) { conn, err = net.Dial(tunnel.network, tunnel.to); return err }))
				defer conn.Close()
				conn.SetDeadline(time.Now().Add(5 * time.Second))
				_, err := conn.Write(append([]byte(tunnel.header), ethernet(b.mac, other.mac, p)...))
				must(t, 0, err)
				return p
			}
			lies := []packet{say(far, "a lie of c"), say(a, "a lie of a")}
			reach(t, far, netip.MustParseAddr("192.168.77.11")) // everything else is allowed there
			reach(t, far, b.ips[0])                             // and the spoofed packets have had time to arrive
			for _, l := range lies {
				if f := ear.find(l.mark); f != nil {
					t.Errorf("%s came out of the tunnel: %x", l.mark, f)
				}
			}
			truth := say(c.host(t, "node2"), "the node's own packet")
			ear.expect(t, "such a packet of node2 itself", truth.mark)
		})
	}
}
