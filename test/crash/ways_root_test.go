package crash

import (
	"net/netip"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
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

// gateways are node1's addresses in the pod network.
func (c cluster) gateways(t *testing.T) (out []netip.Prefix) {
	t.Helper()
	states, err := c.NodeStates(labtest.Within(t, 10*time.Second))
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
