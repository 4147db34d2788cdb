package crash

import (
	"net/netip"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
	"github.com/fairlead-cni/fairlead/test/nstest"
	"github.com/fairlead-cni/fairlead/test/probe"
)

// spot is an end of a stream.
type spot struct {
	netns ns.NetNS
	ips   []netip.Addr
}

// at is a pod of the namespace default.
func (c cluster) at(t *testing.T, pod string) spot {
	t.Helper()
	rec, err := c.Records().Load("default/" + pod)
	must(t, err)
	h, err := c.Host(rec.Node)
	must(t, err)
	s := spot{netns: netnsOf(t, func(f func() error) error { return h.DoNet(rec.Netns, f) })}
	for _, ip := range rec.IPs {
		s.ips = append(s.ips, netip.MustParseAddr(ip))
	}
	return s
}

// onHost is a host with these addresses.
func (c cluster) onHost(t *testing.T, name string, ips ...netip.Prefix) spot {
	t.Helper()
	h, err := c.Host(name)
	must(t, err)
	s := spot{netns: netnsOf(t, h.Do)}
	for _, p := range ips {
		s.ips = append(s.ips, p.Addr())
	}
	return s
}

func netnsOf(t *testing.T, do func(func() error) error) (netns ns.NetNS) {
	t.Helper()
	must(t, do(func() (err error) { netns, err = ns.GetCurrentNS(); return err }))
	t.Cleanup(func() { netns.Close() })
	return netns
}

// way is the path of a stream.
type way struct {
	name  string
	netns ns.NetNS
	from  netip.Addr
	to    netip.AddrPort
}

// to is the path to an echo of its own, which ends with the test, from the address of the same number.
func (s spot) to(t *testing.T, name string, there spot, number int) way {
	t.Helper()
	port, stop, err := probe.Echo(there.netns, there.ips[number])
	must(t, err)
	t.Cleanup(stop)
	return way{name, s.netns, s.ips[number], netip.AddrPortFrom(there.ips[number], port)}
}

// ways start at pods on node1, and at node1 itself, in both families.
func (c cluster) ways(t *testing.T) (ways []way) {
	t.Helper()
	a, b, far := c.at(t, "a"), c.at(t, "b"), c.at(t, "far")
	for i, f := range []underlay.IPFamily{underlay.IPv4, underlay.IPv6} {
		outside := c.onHost(t, underlay.Outside, underlay.Dual.FarAddrs()...)
		gateway := c.onHost(t, node, c.gateways(t)...)
		ways = append(ways, a.to(t, "pod to pod "+string(f), b, i), a.to(t, "pod to pod on the other node "+string(f), far, i),
			a.to(t, "pod to outside "+string(f), outside, i), gateway.to(t, "host to pod "+string(f), a, i))
	}
	return ways
}

// onOtherBridge returns controls of the ways on the userspace datapath: as many packets through the same ovs-vswitchd,
// on a bridge that is not the agent's. A busy machine loses packets by overflowing a port's queue, so one port has as
// many streams as pod a.
func (c cluster) onOtherBridge(t *testing.T) (controls []way, remove func()) {
	t.Helper()
	const bridge = "br-control"
	c.exec(t, "ovs-vsctl", "--timeout=10", "add-br", bridge, "--", "set", "Bridge", bridge, "datapath_type=netdev",
		"fail_mode=standalone")
	c.exec(t, "sh", "-ec", "ip addr add 192.0.2.1/24 dev $0; ip link set $0 up", bridge)
	self := c.onHost(t, node, netip.MustParsePrefix("192.0.2.1/24"))
	var ends []spot
	for _, addr := range []string{"192.0.2.2", "192.0.2.3"} {
		n, port := nstest.New(t), "control"+addr[len(addr)-1:]
		n.Must(func() error {
			return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: port,
				PeerNamespace: netlink.NsFd(int(self.netns.Fd()))})
		})
		n.Exec("sh", "-ec", "ip addr add $0/24 dev eth0; ip link set eth0 up; ethtool -K eth0 tx off", addr)
		// The kernel sees the frames as well, and must not answer.
		c.exec(t, "sh", "-ec", "sysctl -qw net.ipv6.conf.$0.disable_ipv6=1 net.ipv4.conf.$0.arp_ignore=8; "+
			"ip link set $0 up; ovs-vsctl --timeout=10 add-port $1 $0", port, bridge)
		netns, err := ns.GetNS(n.Path)
		must(t, err)
		t.Cleanup(func() { netns.Close() })
		ends = append(ends, spot{netns, []netip.Addr{netip.MustParseAddr(addr)}})
	}
	for i := range 8 { // six from one pod, two to it
		w := ends[0].to(t, "control, like pod to pod", ends[1], 0)
		if i < 2 {
			w = self.to(t, "control, like host to pod", ends[0], 0)
		}
		controls = append(controls, w)
	}
	eventually(t, 10*time.Second, func() []string {
		out, err := c.NodeExec(labtest.Within(t, time.Minute), node, "ping", "-c1", "-W1", "192.0.2.3")
		if err != nil {
			return []string{out}
		}
		return nil
	})
	return controls, func() { c.exec(t, "ovs-vsctl", "--timeout=10", "del-br", bridge) }
}

// gateways are node1's addresses in the pod network.
func (c cluster) gateways(t *testing.T) (out []netip.Prefix) {
	t.Helper()
	states, err := c.NodeStates(labtest.Within(t, time.Minute))
	must(t, err)
	for _, s := range states {
		for _, cidr := range s.PodCIDRs {
			if p := netip.MustParsePrefix(cidr); s.Node == node {
				out = append(out, netip.PrefixFrom(p.Addr().Next(), p.Bits()))
			}
		}
	}
	return out
}

// start sends on all paths.
func start(t *testing.T, ways []way, every time.Duration) (streams []*probe.Stream) {
	t.Helper()
	for _, w := range ways {
		s, err := probe.Start(w.netns, w.from, w.to, every)
		must(t, err)
		streams = append(streams, s)
	}
	return streams
}
