package link

import (
	"slices"
	"testing"

	"github.com/fairlead-cni/fairlead/test/nstest"
)

// The addresses that the node needs are its own and the next hops of all its routes, except those that lead to pods.
func TestRootNeeded(t *testing.T) {
	node, far := nstest.New(t), nstest.New(t)
	nstest.Veth(node, "eth1", far, "far")
	nstest.Veth(node, "gw0", far, "pods")
	for _, line := range []string{
		"addr add 172.30.0.5/16 dev eth1",
		"addr add 2001:db8::5/64 dev eth1 nodad",
		"addr add 198.51.100.7/32 dev lo",
		"addr add 10.0.1.1/24 dev gw0",
		"route add default via 172.30.7.1",
		"-6 route add default via 2001:db8::1",
		"-6 route add fd99::/64 via fe80::1 dev eth1",
		"route add 203.0.113.0/24 via 172.30.8.1 table 77",
		"route add 192.0.2.0/24 nexthop via 172.30.9.1 nexthop via 172.30.9.2",
		"route add 10.0.2.0/24 via 10.0.1.254 dev gw0",
	} {
		node.IP(line)
	}
	var got []string
	node.Must(func() error {
		needed, err := FindNeeded("gw0")
		for _, n := range needed {
			got = append(got, n.Addr.String()+" "+n.What)
		}
		return err
	})
	slices.Sort(got)
	want := []string{
		"172.30.0.5 the address of eth1",
		"172.30.7.1 the next hop to 0.0.0.0/0 on eth1",
		"172.30.8.1 the next hop to 203.0.113.0/24 on eth1",
		"172.30.9.1 the next hop to 192.0.2.0/24 on eth1",
		"172.30.9.2 the next hop to 192.0.2.0/24 on eth1",
		"198.51.100.7 the address of lo",
		"2001:db8::1 the next hop to ::/0 on eth1",
		"2001:db8::5 the address of eth1",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}
