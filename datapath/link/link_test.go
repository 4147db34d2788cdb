package link

import (
	"maps"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

func TestHostName(t *testing.T) {
	a, b := HostName("c1", "eth0"), HostName("c1", "eth1")
	if a == b || a == HostName("c1e", "th0") {
		t.Errorf("different attachments share the name %s", a)
	}
	if a != HostName("c1", "eth0") {
		t.Error("the name is not stable")
	}
	for _, name := range []string{a, b} {
		if err := checkName(name); err != nil || len(name) != 15 || !strings.HasPrefix(name, "fl") {
			t.Errorf("name %q (%v), want fl and 13 characters", name, err)
		}
	}
}

func TestValidate(t *testing.T) {
	good := PodLink{IfName: "eth0", HostIf: HostName("c", "eth0"), MTU: 1450,
		Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.1.5/24")}, Gateways: []netip.Addr{netip.MustParseAddr("10.0.1.1")}}
	if err := good.validate(); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*PodLink)
		says   string
	}{
		"long ifname":    {func(l *PodLink) { l.IfName = "interface-name-16" }, "not an interface name"},
		"slash":          {func(l *PodLink) { l.IfName = "../x" }, "not an interface name"},
		"foreign prefix": {func(l *PodLink) { l.HostIf = "eth7" }, "does not begin with fl"},
		"no address":     {func(l *PodLink) { l.Addrs = nil }, "no address"},
		"zero address":   {func(l *PodLink) { l.Addrs = []netip.Prefix{{}} }, "not an IPv4 or IPv6 address"},
		"mapped":         {func(l *PodLink) { l.Addrs = []netip.Prefix{netip.MustParsePrefix("::ffff:10.0.1.5/120")} }, "not an IPv4"},
		"MTU 0":          {func(l *PodLink) { l.MTU = 0 }, "MTU 0 is not in 68..65535"},
		"MTU for IPv6": {func(l *PodLink) {
			l.MTU, l.Addrs = 1279, append(l.Addrs, netip.MustParsePrefix("fd00::5/64"))
		}, "MTU 1279 is not in 1280..65535"},
		"gateway of other family": {func(l *PodLink) { l.Gateways = []netip.Addr{netip.MustParseAddr("fd00::1")} }, "no address of the family"},
		"zero gateway":            {func(l *PodLink) { l.Gateways = []netip.Addr{{}} }, "no address of the family"},
		"own gateway":             {func(l *PodLink) { l.Gateways = []netip.Addr{l.Addrs[0].Addr()} }, "own address"},
		"two gateways": {func(l *PodLink) {
			l.Gateways = append(l.Gateways, netip.MustParseAddr("10.0.1.2"))
		}, "second of its family"},
	} {
		l := good
		l.Gateways, l.Addrs = append([]netip.Addr(nil), good.Gateways...), append([]netip.Prefix(nil), good.Addrs...)
		c.change(&l)
		if err := l.validate(); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got error %v, want one containing %q", name, err, c.says)
		}
	}
}

func TestChooseTransport(t *testing.T) {
	addrs := func(s ...string) (out []netip.Addr) {
		for _, a := range s {
			out = append(out, netip.MustParseAddr(a))
		}
		return out
	}
	cidrs := func(s ...string) (out []netip.Prefix) {
		for _, p := range s {
			out = append(out, netip.MustParsePrefix(p))
		}
		return out
	}
	devices := []device{
		{Transport{Name: "lo", Index: 1, MTU: 65536}, addrs("10.9.9.9")},
		{Transport{Name: "eth0", Index: 2, MTU: 1500}, addrs("192.0.2.7", "192.0.2.2", "fd00::7", "fd00::2")},
		{Transport{Name: "eth1", Index: 3, MTU: 9000}, addrs("198.51.100.2")},
		{Transport{Name: "eth2", Index: 4, MTU: 1500}, nil},
	}
	for _, c := range []struct {
		name    string
		nodeIPs []netip.Addr
		ifname  string
		cidrs   []netip.Prefix
		want    string // "interface v4 v6", or part of the error
	}{
		{"by node address", addrs("192.0.2.2", "fd00::2"), "", nil, "eth0 192.0.2.2 fd00::2"},
		{"IPv6 node", addrs("fd00::2"), "", nil, "eth0 192.0.2.7 fd00::2"},
		{"second node address", addrs("203.0.113.1", "198.51.100.2"), "", nil, "eth1 198.51.100.2 invalid IP"},
		{"name wins", addrs("192.0.2.2"), "eth1", cidrs("192.0.2.0/24"), "eth1 198.51.100.2 invalid IP"},
		{"CIDR wins over node address", addrs("192.0.2.2"), "", cidrs("203.0.113.0/24", "198.51.100.0/24"), "eth1 198.51.100.2 invalid IP"},
		{"address of the CIDR", addrs("192.0.2.7"), "", cidrs("192.0.2.2/32"), "eth0 192.0.2.2 fd00::7"},
		{"no such name", nil, "eth9", nil, "transportInterface eth9 does not exist"},
		{"name without address", nil, "eth2", nil, "transportInterface eth2 has no address"},
		{"no such CIDR", addrs("192.0.2.2"), "", cidrs("203.0.113.0/24"), "in transportInterfaceCIDRs 203.0.113.0/24"},
		{"no such address", addrs("203.0.113.1"), "", nil, "has the node's address 203.0.113.1"},
		{"only on lo", addrs("10.9.9.9"), "", nil, "(except lo) has the node's address 10.9.9.9"},
		{"nothing to look for", nil, "", nil, "the Node has no address"},
	} {
		got, err := choose(devices, c.nodeIPs, c.ifname, c.cidrs)
		if err != nil {
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: error %q, want %q", c.name, err, c.want)
			}
			continue
		}
		if s := got.Name + " " + got.IPv4.String() + " " + got.IPv6.String(); s != c.want {
			t.Errorf("%s: got %q, want %q", c.name, s, c.want)
		}
	}
	if got := list(devices); got != "lo 10.9.9.9; eth0 192.0.2.7, 192.0.2.2, fd00::7, fd00::2; eth1 198.51.100.2" {
		t.Errorf("list says %q", got)
	}
}

// The test kernels have no VLAN sub-interfaces (module 8021q).
func TestVLANDevices(t *testing.T) {
	vlan := func(name string, id, parent int, protocol netlink.VlanProtocol) netlink.Link {
		attrs := netlink.LinkAttrs{Name: name, ParentIndex: parent}
		return &netlink.Vlan{LinkAttrs: attrs, VlanId: id, VlanProtocol: protocol}
	}
	device := func(name string, index int) netlink.Link {
		return &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: name, Index: index}}
	}
	links := []netlink.Link{vlan("eth0.10", 10, 2, netlink.VLAN_PROTOCOL_8021Q), device("eth0", 2), device("eth1", 3),
		device("br-uplink", 4), vlan("eth1.20", 20, 3, netlink.VLAN_PROTOCOL_8021Q),
		vlan("storage", 30, 4, netlink.VLAN_PROTOCOL_UNKNOWN), vlan("outer", 40, 2, netlink.VLAN_PROTOCOL_8021AD)}
	got := vlanDevices(links, []string{"eth0", "br-uplink"})
	if want := (map[uint16]string{10: "eth0.10", 30: "storage"}); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
