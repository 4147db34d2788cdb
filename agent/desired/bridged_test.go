package desired

import (
	"fmt"
	"math/rand"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
	"github.com/fairlead-cni/fairlead/datapath/uplink/steer"
	"github.com/fairlead-cni/fairlead/openflow/tables"
)

func addrList(s ...string) (out []netip.Addr) {
	for _, a := range s {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func prefixList(s ...string) (out []netip.Prefix) {
	for _, p := range s {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

// bridgedInputs are dualInputs with two bridged pods.
func bridgedInputs() Inputs {
	in := dualInputs()
	in.Config.EnableBridgingMode, in.Uplink = true, "br-uplink"
	in.Config.ServiceCIDR, in.Config.ServiceCIDRv6 = netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd00:96::/112")
	in.NodeAddrs = addrList("10.96.0.10", "172.17.0.1", "192.0.2.1", "2001:db8::1")
	in.Pools = prefixList("192.0.2.128/26", "192.168.110.64/26", "fd00:a::/64")
	in.Attachments = append(in.Attachments,
		api.Attachment{ContainerID: "c3", HostIf: "fl3", MAC: api.MAC{2, 0, 0, 0, 0, 3}, Bridged: true, VLAN: 10,
			Addrs: prefixList("192.168.110.70/24", "fd00:a::7/64"), Pools: []string{"four", "six"}},
		api.Attachment{ContainerID: "c4", HostIf: "fl4", MAC: api.MAC{2, 0, 0, 0, 0, 4}, Bridged: true,
			Addrs: prefixList("192.0.2.130/24"), Pools: []string{"flat"}})
	return in
}

func routesText(d State) (out []string) {
	for _, r := range d.Routes.Routes {
		text := r.Dst.String()
		for _, part := range []struct {
			what  string
			there bool
			value any
		}{{"via", r.Via.IsValid(), r.Via}, {"mac", r.MAC != api.MAC{}, r.MAC}, {"src", r.Src.IsValid(), r.Src}, {"mtu", r.MTU != 0, r.MTU}} {
			if part.there {
				text += fmt.Sprintf(" %s %v", part.what, part.value)
			}
		}
		out = append(out, text)
	}
	return out
}

func TestDesireBridged(t *testing.T) {
	d := Compute(bridgedInputs())
	if d.PodMTU != 1450 || d.Gateway.MTU != 1500 || d.OVSDB.Gateway.MTU != 1500 || d.Gateway.SubnetMTU != 1450 {
		t.Errorf("MTU: routed %d, gateway %d and %d, its subnets %d", d.PodMTU, d.Gateway.MTU,
			d.OVSDB.Gateway.MTU, d.Gateway.SubnetMTU)
	}
	want := []string{
		"10.0.2.0/24 src 10.0.1.1 mtu 1450", "fd00:0:0:2::/64 src fd00:0:0:1::1 mtu 1450",
		"10.0.3.0/24 src 10.0.1.1 mtu 1450", "fd00:0:0:3::/64 src fd00:0:0:1::1 mtu 1450",
		"192.0.2.130/32 mac 02:00:00:00:00:04 src 192.0.2.1", "192.168.110.70/32 mac 02:00:00:00:00:03 src 192.0.2.1",
		"fd00:a::7/128 mac 02:00:00:00:00:03 src 2001:db8::1",
	}
	if got := routesText(d); !slices.Equal(got, want) {
		t.Errorf("routes\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if u := d.OVSDB.Uplink; u == nil || u.Name != "fairlead-up0" || u.Type != "patch" || u.Options["peer"] != "fairlead-up1" {
		t.Errorf("uplink %+v", u)
	}
	if want := addrList("192.0.2.1", "2001:db8::1", "172.17.0.1"); !slices.Equal(d.NodeAddrs, want) || !slices.Equal(d.NAT.NodeAddrs, want) {
		t.Errorf("node's addresses %v and %v, want %v: first those that other nodes know, and no Service's", d.NodeAddrs, d.NAT.NodeAddrs, want)
	}
	wantVia := prefixList("10.0.1.0/24", "10.0.2.0/23", "10.96.0.0/12", "fd00:0:0:1::/64", "fd00:0:0:2::/63", "fd00:96::/112")
	if !slices.Equal(d.ViaHost, wantVia) {
		t.Errorf("via host %v, want %v", d.ViaHost, wantVia)
	}
	if want := prefixList("192.0.2.128/26", "192.168.110.64/26", "fd00:a::/64"); !slices.Equal(d.NAT.Pools, want) {
		t.Errorf("masqueraded pools %v, want %v", d.NAT.Pools, want)
	}
	known := []steer.Entry{{MAC: api.MAC{2, 0, 0, 0, 0, 3}, VLAN: 10}, {MAC: api.MAC{2, 0, 0, 0, 0, 4}}}
	if !slices.Equal(d.Steer, known) {
		t.Errorf("the uplink's programs know %+v, want %+v", d.Steer, known)
	}

	obs := ovsdb.Observed{Uplink: ovsdb.Port{OFPort: 3},
		Pods: []ovsdb.PodPort{{Attachment: api.Attachment{HostIf: "fl3"}, OFPort: 7}}}
	v := d.View(obs)
	i := slices.IndexFunc(v.Pods, func(p tables.Pod) bool { return p.Port == 7 })
	if v.Uplink != 3 || i < 0 || !v.Pods[i].Bridged || v.Pods[i].VLAN != 10 || !slices.Equal(v.NodeAddrs, d.NodeAddrs) ||
		!slices.Equal(v.ViaHost, d.ViaHost) || v.RoutedMTU != 1450 {
		t.Errorf("view %+v", v)
	}
}

func TestLacksServices(t *testing.T) {
	in := bridgedInputs()
	if LacksServiceCIDRv6(in.Config, in.Own.PodCIDRs) {
		t.Error("both are set")
	}
	in.Config.ServiceCIDRv6 = netip.Prefix{}
	if !LacksServiceCIDRv6(in.Config, in.Own.PodCIDRs) || LacksServiceCIDRv6(in.Config, prefixList("10.0.1.0/24")) {
		t.Error("without serviceCIDRv6 only nodes with IPv6 lack Services")
	}
	if in.Config.EnableBridgingMode = false; LacksServiceCIDRv6(in.Config, in.Own.PodCIDRs) {
		t.Error("without bridged pods no pod lacks Services")
	}
}

// Pods keep working when their pool is deleted or becomes invalid: NAT for traffic that the node forwards for them is
// unchanged.
func TestDesireBridgedWithoutPools(t *testing.T) {
	in := bridgedInputs()
	in.Pools = nil
	d := Compute(in)
	if want := prefixList("192.0.2.130/32", "192.168.110.70/32", "fd00:a::7/128"); !slices.Equal(d.NAT.Pools, want) {
		t.Errorf("masqueraded are %v, want %v", d.NAT.Pools, want)
	}
	if len(d.NAT.NodeAddrs) == 0 {
		t.Error("no addresses of the node")
	}
}

func TestDesireBridgedDoesNotDependOnOrder(t *testing.T) {
	want := Compute(bridgedInputs())
	for range 50 {
		in := bridgedInputs()
		rand.Shuffle(len(in.Attachments), func(i, j int) {
			in.Attachments[i], in.Attachments[j] = in.Attachments[j], in.Attachments[i]
		})
		rand.Shuffle(len(in.Pools), func(i, j int) { in.Pools[i], in.Pools[j] = in.Pools[j], in.Pools[i] })
		a := in.NodeAddrs
		rand.Shuffle(len(a), func(i, j int) { a[i], a[j] = a[j], a[i] })
		if got := Compute(in); !reflect.DeepEqual(got, want) {
			t.Fatalf("got  %+v\nwant %+v", got, want)
		}
	}
}

func TestDesireBridgedModes(t *testing.T) {
	for _, c := range []struct {
		name    string
		change  func(*Inputs)
		via     []netip.Prefix
		pools   []netip.Prefix
		routes  []string // to other nodes
		gateway int      // MTU
	}{
		{"noEncap", func(in *Inputs) { in.Config.TrafficEncapMode = api.ModeNoEncap },
			prefixList("10.0.1.0/24", "10.0.2.0/23", "10.96.0.0/12", "fd00:0:0:1::/64", "fd00:0:0:2::/63", "fd00:96::/112"),
			bridgedInputs().Pools,
			[]string{"10.0.2.0/24 via 192.0.2.2", "fd00:0:0:2::/64 via 2001:db8::2", "10.0.3.0/24 via 192.0.2.3", "fd00:0:0:3::/64 via 2001:db8::3"}, 1500},
		{"noEncap, and the underlay routes podCIDRs",
			func(in *Inputs) { in.Config.TrafficEncapMode, in.Config.NoSNAT = api.ModeNoEncap, true },
			prefixList("10.0.1.0/24", "10.96.0.0/12", "fd00:0:0:1::/64", "fd00:96::/112"), bridgedInputs().Pools,
			[]string{"10.0.2.0/24 via 192.0.2.2", "fd00:0:0:2::/64 via 2001:db8::2", "10.0.3.0/24 via 192.0.2.3", "fd00:0:0:3::/64 via 2001:db8::3"}, 1500},
		{"no podCIDR, and so no tunnel", func(in *Inputs) { in.Own.PodCIDRs = nil },
			prefixList("10.0.2.0/23", "10.96.0.0/12", "fd00:0:0:2::/63", "fd00:96::/112"), bridgedInputs().Pools,
			[]string{"10.0.2.0/24 via 192.0.2.2", "fd00:0:0:2::/64 via 2001:db8::2", "10.0.3.0/24 via 192.0.2.3", "fd00:0:0:3::/64 via 2001:db8::3"}, 1500},
		{"no podCIDR, and peers in other subnets", func(in *Inputs) { in.Own.PodCIDRs, in.Transport.Subnets = nil, nil },
			prefixList("10.96.0.0/12", "fd00:96::/112"), bridgedInputs().Pools, nil, 1500},
		{"no podCIDR, no tunnel", func(in *Inputs) { in.Own.PodCIDRs, in.Config.TrafficEncapMode = nil, api.ModeNoEncap },
			prefixList("10.0.2.0/23", "10.96.0.0/12", "fd00:0:0:2::/63", "fd00:96::/112"), bridgedInputs().Pools,
			[]string{"10.0.2.0/24 via 192.0.2.2", "fd00:0:0:2::/64 via 2001:db8::2", "10.0.3.0/24 via 192.0.2.3", "fd00:0:0:3::/64 via 2001:db8::3"}, 1500},
		{"MTU from the config", func(in *Inputs) { in.Config.DefaultMTU, in.Own.PodCIDRs, in.Transport.Subnets = 1400, nil, nil },
			prefixList("10.96.0.0/12", "fd00:96::/112"), bridgedInputs().Pools, nil, 1400},
		{"a node without IPv6, and pools that overlap", func(in *Inputs) {
			in.Own.PodCIDRs, in.Transport.IPv6, in.Transport.Subnets = nil, netip.Addr{}, nil
			in.Pools = append(in.Pools, prefixList("10.0.2.128/25", "10.100.0.0/24", "10.0.0.0/8")...)
		}, prefixList("10.96.0.0/12", "fd00:96::/112"), prefixList("192.0.2.128/26", "192.168.110.64/26"), nil, 1500},
	} {
		in := bridgedInputs()
		c.change(&in)
		d := Compute(in)
		if !slices.Equal(d.ViaHost, c.via) || !slices.Equal(d.NAT.Pools, c.pools) || d.Gateway.MTU != c.gateway {
			t.Errorf("%s: via host %v, want %v; pools %v, want %v; MTU %d, want %d", c.name, d.ViaHost, c.via, d.NAT.Pools, c.pools,
				d.Gateway.MTU, c.gateway)
		}
		got := slices.DeleteFunc(routesText(d), func(s string) bool { return strings.Contains(s, " mac ") })
		if !slices.Equal(got, c.routes) {
			t.Errorf("%s: routes %q, want %q", c.name, got, c.routes)
		}
	}
}

// A node in bridging mode without a podCIDR has a gateway without addresses; without bridging mode, nothing for bridged
// pods is desired.
func TestDesireBridgedExtremes(t *testing.T) {
	in := bridgedInputs()
	in.Own.PodCIDRs = nil
	if d := Compute(in); len(d.Gateway.Addrs) != 0 || !d.Gateway.IPv4 || !d.Gateway.IPv6 {
		t.Errorf("gateway %+v, want no address and both Families", d.Gateway)
	}
	d := Compute(dualInputs())
	if d.OVSDB.Uplink != nil || d.Gateway.SubnetMTU != 0 || d.Gateway.IPv4 || len(d.NAT.Pools)+len(d.NAT.NodeAddrs) != 0 {
		t.Errorf("without bridging mode: %+v", d)
	}
}

// An agent that starts on a node that has lost its podCIDR keeps the gateway of running pods, unless another node now
// has the range.
func TestHeldCIDRs(t *testing.T) {
	routed := func(addrs ...string) api.Attachment { return api.Attachment{Addrs: prefixList(addrs...)} }
	pooled := routed("192.168.110.70/24")
	pooled.Bridged = true
	own := node("me", "", "192.0.2.1")
	attachments := []api.Attachment{routed("10.0.1.5/24", "fd00:1::5/64"), routed("10.0.1.6/24"), routed("10.0.2.7/24"), routed("10.0.9.9/32"), pooled}
	got := HeldCIDRs(own, nodeMap(own, node("b", "10.0.2.0/23", "192.0.2.2")), attachments)
	if want := prefixList("10.0.1.0/24", "fd00:1::/64"); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Rules about the podCIDR do not apply to bridged pods.
func TestBridgedPodsAreNotOutside(t *testing.T) {
	own := node("me", "10.0.1.0/24", "192.0.2.1")
	a := bridgedInputs().Attachments
	if got := OutsidePodCIDRs(own, a); got != nil {
		t.Errorf("OutsidePodCIDRs %v", got)
	}
	a[3].Bridged = false
	if got := OutsidePodCIDRs(own, a); len(got) != 1 {
		t.Errorf("OutsidePodCIDRs %v, want the one that is routed", got)
	}
}

func TestPoolRanges(t *testing.T) {
	object := func(start, end, scope string) api.IPPool {
		p := api.IPPool{Spec: api.IPPoolSpec{IPVersion: 4, IPRanges: []api.IPRange{{Start: start, End: end,
			SubnetInfo: api.SubnetInfo{Gateway: "192.168.110.1", PrefixLength: 24, VLAN: 10}}}}}
		p.Name = "p" + start
		if scope != "" {
			p.Annotations = map[string]string{api.AnnotationNetwork: scope}
		}
		return p
	}
	got := PoolRanges(map[string]api.IPPool{
		"a": object("192.168.110.64", "192.168.110.95", ""), "b": object("192.168.110.96", "192.168.110.127", ""),
		"isolated": object("192.168.110.128", "192.168.110.159", "lab"), "invalid": object("192.168.110.9", "192.168.110.2", ""),
	})
	if want := prefixList("192.168.110.64/26"); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
