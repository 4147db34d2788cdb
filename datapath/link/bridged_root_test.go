package link

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/test/nstest"
)

// The routes to the gateway's subnets get the MTU of the pods there, and lose it again; so do routes that the kernel
// recreates.
func TestRootSubnetMTU(t *testing.T) {
	node := nstest.New(t)
	g := gateway()
	node.IP("tuntap add dev " + g.Name + " mode tap")
	g.MTU, g.SubnetMTU = 1500, 1450
	ensureGateway(t, node, g)
	want := func(text string) {
		t.Helper()
		for _, dst := range []string{"10.0.1.5", "fd00:1::5"} {
			if got := node.IP("route get " + dst); strings.Contains(got, "mtu 1450") != (text == "mtu 1450") {
				t.Errorf("want %q in the way to %s: %s", text, dst, got)
			}
		}
		if changes := ensureGateway(t, node, g); changes != nil {
			t.Errorf("a further EnsureGateway changed %v", changes)
		}
	}
	want("mtu 1450")
	node.IP("addr flush dev " + g.Name)
	ensureGateway(t, node, g)
	want("mtu 1450")
	g.SubnetMTU = 0
	ensureGateway(t, node, g)
	want("")
	g.Addrs = nil // deleting an address deletes its route, whatever MTU that has
	ensureGateway(t, node, g)
	if got := node.IP("route show") + node.IP("-6 route show table main"); strings.Contains(got, "10.0.1.0") || strings.Contains(got, "fd00:1") {
		t.Errorf("left: %s", got)
	}
}

// The node's own packets to the gateway's subnets have the desired source, also after the kernel has deleted the route
// with that address, and the routes are removed with the subnet.
func TestRootSubnetSource(t *testing.T) {
	node := nstest.New(t)
	g := gateway()
	node.IP("tuntap add dev " + g.Name + " mode tap")
	node.IP("tuntap add dev eth0 mode tap")
	node.IP("link set eth0 up")
	g.Sources = []netip.Addr{netip.MustParseAddr("192.0.2.5"), netip.MustParseAddr("2001:db8::5")}
	want := func(sources ...string) {
		t.Helper()
		ensureGateway(t, node, g)
		for i, dst := range []string{"10.0.1.5", "fd00:1::5"} {
			if got := node.IP("route get " + dst); !strings.Contains(got, " src "+sources[i]+" ") {
				t.Errorf("the way to %s is %s, want it from %s", dst, got, sources[i])
			}
		}
		if changes := ensureGateway(t, node, g); changes != nil {
			t.Errorf("a further EnsureGateway changed %v", changes)
		}
	}
	for range 2 { // the second time the routes have lost their source, or were deleted with it
		node.IP("addr add 192.0.2.5/24 dev eth0")
		node.IP("addr add 2001:db8::5/64 dev eth0 nodad")
		want("192.0.2.5", "2001:db8::5")
		node.IP("addr flush dev eth0")
	}
	g.Sources = nil
	want("10.0.1.1", "fd00:1::1")
	node.IP("addr add 192.0.2.5/24 dev eth0")
	node.IP("addr add 2001:db8::5/64 dev eth0 nodad")
	g.Sources = []netip.Addr{netip.MustParseAddr("192.0.2.5"), netip.MustParseAddr("2001:db8::5")}
	want("192.0.2.5", "2001:db8::5")
	g.Addrs = nil
	ensureGateway(t, node, g)
	if got := node.IP("route show") + node.IP("-6 route show table main"); strings.Contains(got, "10.0.1.0") ||
		strings.Contains(got, "fd00:1") {
		t.Errorf("left: %s", got)
	}
}

// A gateway that serves only bridged pods forwards without an address.
func TestRootGatewayWithoutAddress(t *testing.T) {
	node := nstest.New(t)
	g := gateway()
	node.IP("tuntap add dev " + g.Name + " mode tap")
	g.Addrs, g.IPv4, g.IPv6 = nil, true, true
	ensureGateway(t, node, g)
	wantAddrs(t, node, g.Name, "fe80::ff:fe00:101/64")
	for _, file := range []string{"ipv4/conf/fairlead-gw0/forwarding", "ipv6/conf/fairlead-gw0/forwarding"} {
		if got := strings.TrimSpace(node.Exec("cat", "/proc/sys/net/"+file)); got != "1" {
			t.Errorf("%s is %s", file, got)
		}
	}
	if changes := ensureGateway(t, node, g); changes != nil {
		t.Errorf("a further EnsureGateway changed %v", changes)
	}
}

func TestRootNodeAddrs(t *testing.T) {
	node, far := nstest.New(t), nstest.New(t)
	nstest.Veth(node, "eth1", far, "far")
	nstest.Veth(node, "gw0", far, "pods")
	for _, line := range []string{
		"addr add 172.30.0.5/16 dev eth1", "addr add 2001:db8::5/64 dev eth1 nodad", "addr add 198.51.100.7/32 dev lo",
		"addr add 169.254.20.10/32 dev lo", "addr add 172.30.0.5/32 dev lo", "addr add 10.0.1.1/24 dev gw0", "addr add fd00:1::1/64 dev gw0 nodad",
		"link set lo up",
	} {
		node.IP(line)
	}
	var got []netip.Addr
	node.Must(func() (err error) { got, err = NodeAddrs("gw0"); return err })
	var want []netip.Addr
	for _, a := range []string{"169.254.20.10", "172.30.0.5", "198.51.100.7", "2001:db8::5"} {
		want = append(want, netip.MustParseAddr(a))
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
