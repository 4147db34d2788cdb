package link

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/nstest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

func gateway() GatewayLink {
	return GatewayLink{Name: "fairlead-gw0", MAC: api.MAC{2, 0, 0, 0, 1, 1}, MTU: 1410,
		Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.1.1/24"), netip.MustParsePrefix("fd00:1::1/64")}}
}

func ensureGateway(t *testing.T, node *nstest.NS, g GatewayLink) []string {
	t.Helper()
	var changes []string
	node.Must(func() (err error) { changes, err = EnsureGateway(g); return err })
	return changes
}

// wantAddrs fails the test unless the device has exactly these addresses, in
// any order and all usable.
func wantAddrs(t *testing.T, node *nstest.NS, name string, want ...string) {
	t.Helper()
	var got []string
	for _, line := range strings.Split(strings.TrimSpace(node.IP("-o addr show dev "+name)), "\n") {
		if f := strings.Fields(line); len(f) > 3 {
			got = append(got, f[3])
		}
	}
	nstest.Wait(t, time.Minute, "all addresses to be usable", func() bool {
		out := node.IP("-o addr show dev " + name)
		return !strings.Contains(out, "tentative") && !strings.Contains(out, "dadfailed")
	})
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%s has addresses %v, want %v", name, got, want)
	}
}

var gatewayAddrs = []string{"10.0.1.1/24", "fd00:1::1/64", "fe80::ff:fe00:101/64"}

func TestRootGateway(t *testing.T) {
	node := nstest.New(t)
	g := gateway()
	node.IP("tuntap add dev " + g.Name + " mode tap")
	if changes := ensureGateway(t, node, g); !slices.Contains(changes, "up") {
		t.Errorf("the first EnsureGateway says %v, want at least up", changes)
	}
	wantAddrs(t, node, g.Name, gatewayAddrs...)
	for sysctl, want := range map[string]string{
		"ipv4/conf/fairlead-gw0/rp_filter": "2", "ipv4/conf/fairlead-gw0/send_redirects": "0",
		"ipv4/conf/fairlead-gw0/arp_announce": "2", "ipv6/conf/fairlead-gw0/accept_ra": "0",
		"ipv6/conf/fairlead-gw0/addr_gen_mode": "0",
	} {
		if got := strings.TrimSpace(node.Exec("cat", "/proc/sys/net/"+sysctl)); got != want {
			t.Errorf("%s is %s, want %s", sysctl, got, want)
		}
	}
	for _, drift := range []string{
		"ip link set fairlead-gw0 down",
		"ip link set fairlead-gw0 mtu 1500",
		"ip link set fairlead-gw0 mtu 1000", // the kernel disables IPv6 on it
		"ip link set fairlead-gw0 address 02:00:00:00:00:77",
		"ip addr flush dev fairlead-gw0",
		"ip addr del 10.0.1.1/24 dev fairlead-gw0",
		"ip addr del fe80::ff:fe00:101/64 dev fairlead-gw0",
		"ip addr add 10.0.7.7/24 dev fairlead-gw0",
		"ip addr add fd00:7::7/64 dev fairlead-gw0 nodad",
		"sysctl -qw net.ipv4.conf.fairlead-gw0.rp_filter=1",
		"sysctl -qw net.ipv6.conf.fairlead-gw0.disable_ipv6=1",
	} {
		if changes := ensureGateway(t, node, g); len(changes) != 0 {
			t.Fatalf("before %q EnsureGateway changed %v, want nothing", drift, changes)
		}
		node.Exec(strings.Fields(drift)...)
		if changes := ensureGateway(t, node, g); len(changes) == 0 {
			t.Errorf("after %q nothing was repaired", drift)
		}
		wantAddrs(t, node, g.Name, gatewayAddrs...)
	}
	if got := node.IP("-o link show " + g.Name); !strings.Contains(got, "mtu 1410") || !strings.Contains(got, g.MAC.String()) {
		t.Errorf("MTU or MAC were not repaired: %s", got)
	}
}

// A new podCIDR: the new address must survive the removal of the old one, also if both are in one subnet, where the
// kernel makes the new one secondary.
func TestRootGatewayNewAddress(t *testing.T) {
	node := nstest.New(t)
	g := gateway()
	node.IP("tuntap add dev " + g.Name + " mode tap")
	for _, addrs := range [][]string{{"10.0.1.1/24"}, {"10.0.1.2/24"}, {"10.0.1.2/16"}, {"fd00:1::1/64"}, {"fd00:1::1/80"}, {"10.0.1.1/24", "fd00:2::1/64"}} {
		g.Addrs, addrs = nil, slices.Clone(addrs)
		for _, a := range addrs {
			g.Addrs = append(g.Addrs, netip.MustParsePrefix(a))
		}
		if strings.Contains(strings.Join(addrs, " "), ":") {
			addrs = append(addrs, "fe80::ff:fe00:101/64")
		}
		changes := ensureGateway(t, node, g)
		t.Log(changes)
		got := node.IP("-o addr show dev " + g.Name)
		for _, a := range addrs {
			if !strings.Contains(got, " "+a+" ") {
				t.Errorf("lacks %s:\n%s", a, got)
			}
		}
	}
	wantAddrs(t, node, g.Name, "10.0.1.1/24", "fd00:2::1/64", "fe80::ff:fe00:101/64")
}

// A configuration mistake must not cost the node its addresses.
func TestRootGatewayRefuses(t *testing.T) {
	node := nstest.New(t)
	node.IP("link add eth0 type veth peer name x0")
	node.IP("addr add 192.0.2.2/24 dev eth0")
	g := gateway()
	err := node.Do(func() error { _, err := EnsureGateway(g); return err })
	if err == nil || !strings.Contains(err.Error(), "fairlead-gw0 does not exist") {
		t.Errorf("a missing device: %v", err)
	}
	g.Name = "eth0"
	err = node.Do(func() error { _, err := EnsureGateway(g); return err })
	if err == nil || !strings.Contains(err.Error(), `type "veth"`) {
		t.Errorf("another device: %v", err)
	}
	wantAddrs(t, node, "eth0", "192.0.2.2/24")
}

// "ovs-appctl exit --cleanup" removes the device; the next ovs-vswitchd creates one that is down and unconfigured.
func TestRootGatewayAfterCleanup(t *testing.T) {
	node := nstest.New(t)
	o := ovstest.Start(t, ovstest.Options{Datapath: ovstest.UnderTest(t), Netns: node.Path})
	g := gateway()
	o.AddBridge("br-int", ovstest.Port{Name: g.Name, Type: "internal",
		Columns: []string{`mac="` + g.MAC.String() + `"`, "mtu_request=1410"}})
	ensureGateway(t, node, g)
	wantAddrs(t, node, g.Name, gatewayAddrs...)

	o.Appctl("exit", "--cleanup")
	nstest.Wait(t, time.Minute, "the device to go with ovs-vswitchd", func() bool {
		_, err := node.Run("ip", "link", "show", g.Name)
		return err != nil
	})
	o.Vswitchd.Kill() // exits on its own; this waits for it
	o.Vswitchd.Start()
	if out := node.IP("-4 addr show dev " + g.Name); strings.Contains(out, "inet") {
		t.Fatalf("the new device has addresses already: %s", out)
	}
	ensureGateway(t, node, g)
	wantAddrs(t, node, g.Name, gatewayAddrs...)
	if changes := ensureGateway(t, node, g); len(changes) != 0 {
		t.Errorf("a further EnsureGateway changed %v", changes)
	}
}

func TestRootFindTransport(t *testing.T) {
	node, other := nstest.New(t), nstest.New(t)
	node.IP("tuntap add dev fairlead-gw0 mode tap") // the first, so that only its name prevents it from being chosen
	node.IP("addr add 10.2.0.1/24 dev fairlead-gw0")
	nstest.Veth(node, "eth0", other, "e0")
	nstest.Veth(node, "eth1", other, "e1")
	node.IP("link set eth1 mtu 1300")
	node.IP("addr add 192.0.2.2/24 dev eth0")
	node.IP("addr add fd00:5::2/64 dev eth0 nodad")
	node.IP("addr add fd00:5::1/64 dev eth0 nodad preferred_lft 0")
	node.IP("addr add 10.1.0.2/16 dev eth1")

	find := func(nodeIP, ifname, cidr string) (got Transport, err error) {
		var ips []netip.Addr
		var cidrs []netip.Prefix
		if nodeIP != "" {
			ips = append(ips, netip.MustParseAddr(nodeIP))
		}
		if cidr != "" {
			cidrs = append(cidrs, netip.MustParsePrefix(cidr))
		}
		err = node.Do(func() (err error) { got, err = FindTransport(ips, ifname, cidrs, "fairlead-gw0"); return err })
		return got, err
	}
	got, err := find("192.0.2.2", "", "")
	if err != nil || got.Name != "eth0" || got.MTU != 1500 || got.IPv4.String() != "192.0.2.2" || got.IPv6.String() != "fd00:5::2" {
		t.Errorf("by node address: %+v, %v", got, err)
	}
	if want := "[192.0.2.0/24 fd00:5::/64]"; fmt.Sprint(got.Subnets) != want {
		t.Errorf("subnets %v, want %s", got.Subnets, want)
	}
	got, err = find("192.0.2.2", "eth1", "")
	if err != nil || got.Name != "eth1" || got.MTU != 1300 || got.IPv4.String() != "10.1.0.2" || got.IPv6.IsValid() || got.Index == 0 {
		t.Errorf("by name: %+v, %v", got, err)
	}
	if got, err = find("192.0.2.2", "", "10.0.0.0/8"); err != nil || got.Name != "eth1" {
		t.Errorf("by CIDR that covers the gateway too: %+v, %v", got, err)
	}
	node.IP("addr flush dev eth1")
	if _, err = find("192.0.2.2", "eth1", ""); err == nil || !strings.Contains(err.Error(), "eth1 has no address") {
		t.Errorf("by name, without an address: %v", err)
	}
	node.IP("addr add 10.1.0.2/16 dev eth1")
	_, err = find("203.0.113.9", "", "")
	if err == nil || !strings.Contains(err.Error(), "203.0.113.9") || !strings.Contains(err.Error(), "this node has eth0 192.0.2.2, fd00:5::2; eth1 10.1.0.2") {
		t.Errorf("unknown node address: %v", err)
	}
}
