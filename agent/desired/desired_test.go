package desired

import (
	"math/rand"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/datapath/nat"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

func dualInputs() Inputs {
	dual := func(name, v4, v6, a4, a6 string) inputs.Node {
		addrs := []netip.Addr{netip.MustParseAddr(a4), netip.MustParseAddr(a6)}
		return inputs.Node{Name: name,
			PodCIDRs:  []netip.Prefix{netip.MustParsePrefix(v4), netip.MustParsePrefix(v6)},
			Addresses: addrs, TunnelAddresses: addrs}
	}
	me := dual("me", "10.0.1.0/24", "fd00:0:0:1::/64", "192.0.2.1", "2001:db8::1")
	return Inputs{
		Config: api.AgentConfig{OVSBridge: "br-int", OVSDatapathType: api.DatapathNetdev, HostGateway: "fairlead-gw0",
			TrafficEncapMode: api.ModeEncap, TunnelType: api.TunnelGeneve},
		Own: me,
		Nodes: nodeMap(me,
			dual("b", "10.0.2.0/24", "fd00:0:0:2::/64", "192.0.2.2", "2001:db8::2"),
			dual("c", "10.0.3.0/24", "fd00:0:0:3::/64", "192.0.2.3", "2001:db8::3"),
			node("pending", "", "192.0.2.4")),
		Transport: link.Transport{Name: "eth0", MTU: 1500,
			IPv4: netip.MustParseAddr("192.0.2.1"), IPv6: netip.MustParseAddr("2001:db8::1"),
			Subnets: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/64")}},
		Attachments: []api.Attachment{{ContainerID: "c1", HostIf: "fl1"}, {ContainerID: "c2", HostIf: "fl2"}},
	}
}

func TestDesire(t *testing.T) {
	d := Compute(dualInputs())
	if d.PodMTU != 1450 || d.Gateway.MTU != 1450 || d.OVSDB.Gateway.MTU != 1450 {
		t.Errorf("MTU: pods %d, gateway %d and %d, want 1450 = 1500 - 50", d.PodMTU, d.Gateway.MTU, d.OVSDB.Gateway.MTU)
	}
	wantGateway := []netip.Prefix{netip.MustParsePrefix("10.0.1.1/24"), netip.MustParsePrefix("fd00:0:0:1::1/64")}
	if !reflect.DeepEqual(d.Gateway.Addrs, wantGateway) {
		t.Errorf("gateway addresses %v, want %v", d.Gateway.Addrs, wantGateway)
	}
	if d.Gateway.MAC != d.OVSDB.Gateway.MAC || d.Gateway.MAC[0]&3 != 2 {
		t.Errorf("gateway MAC %s: want one locally administered unicast address everywhere", d.Gateway.MAC)
	}
	if len(d.Peers) != 2 || d.Peers[0].Tunnel.String() != "192.0.2.2" || d.Peers[1].Name != "c" {
		t.Errorf("peers %+v: want b and c by their IPv4 endpoints, and not the one without a podCIDR", d.Peers)
	}
	if len(d.Routes.Routes) != 4 || !d.NAT.Masquerade || len(d.Problems) != 0 {
		t.Errorf("routes %v, masquerade %v, problems %v", d.Routes.Routes, d.NAT.Masquerade, d.Problems)
	}
}

// The order of inputs does not matter: they come from maps and events.
func TestDesireDoesNotDependOnOrder(t *testing.T) {
	want := Compute(dualInputs())
	for range 50 {
		in := dualInputs()
		rand.Shuffle(len(in.Attachments), func(i, j int) {
			in.Attachments[i], in.Attachments[j] = in.Attachments[j], in.Attachments[i]
		})
		if rand.Intn(2) == 0 {
			in.Own.PodCIDRs = []netip.Prefix{in.Own.PodCIDRs[1], in.Own.PodCIDRs[0]}
		}
		if got := Compute(in); !reflect.DeepEqual(got, want) {
			t.Fatalf("got  %+v\nwant %+v", got, want)
		}
	}
}

func TestDesireModes(t *testing.T) {
	in := dualInputs()
	in.Config.TrafficEncapMode, in.Config.NoSNAT = api.ModeNoEncap, true
	d := Compute(in)
	none := d.OVSDB.Tunnel == nil && d.NAT.Tunnel == (nat.Tunnel{}) && d.NAT.TunnelEnd == (nat.TunnelEnd{})
	if !none || d.PodMTU != 1500 || d.NAT.Masquerade || len(d.Peers) != 2 {
		t.Errorf("noEncap with noSNAT: tunnel %v, %v, MTU %d, masquerade %v, peers %v",
			d.OVSDB.Tunnel, d.NAT.Tunnel, d.PodMTU, d.NAT.Masquerade, d.Peers)
	}
	in = dualInputs()
	in.Config.TrafficEncapMode = api.ModeHybrid
	d = Compute(in)
	if d.OVSDB.Tunnel == nil || d.PodMTU != 1450 || !d.NAT.Masquerade || d.NAT.Tunnel.Port != 6081 {
		t.Errorf("hybrid: tunnel %v, %v, MTU %d, masquerade %v", d.OVSDB.Tunnel, d.NAT.Tunnel, d.PodMTU, d.NAT.Masquerade)
	}
	in.Config.OVSDatapathType = api.DatapathSystem
	d = Compute(in)
	if want := (nat.TunnelEnd{Interface: "eth0", Addr: in.Transport.IPv4}); d.NAT.TunnelEnd != want {
		t.Errorf("the tunnel's end is %v, want %v", d.NAT.TunnelEnd, want)
	}
	in.Config.OVSDatapathType = api.DatapathNetdev
	if d := Compute(in); d.NAT.TunnelEnd != (nat.TunnelEnd{}) {
		t.Errorf("netfilter would meet the userspace datapath's tunnel at %v", d.NAT.TunnelEnd)
	}
	for tunnel, mtu := range map[string]int{"geneve": 1430, "vxlan": 1430, "gre": 1438} {
		in := dualInputs()
		in.Config.TunnelType = tunnel
		in.Transport.IPv4 = netip.Addr{}
		if d := Compute(in); d.PodMTU != mtu || d.Peers[0].Tunnel.String() != "2001:db8::2" {
			t.Errorf("%s over IPv6: MTU %d, want %d; Endpoint %s", tunnel, d.PodMTU, mtu, d.Peers[0].Tunnel)
		}
	}
}

func TestDesireRefusesPeers(t *testing.T) {
	in := dualInputs()
	in.Nodes["thief"] = node("thief", "10.0.1.0/25", "192.0.2.9")
	in.Needed = []link.Needed{{Addr: netip.MustParseAddr("172.30.7.1"), What: "the next hop to default on eth1"}}
	in.Nodes["secondnic"] = node("secondnic", "172.30.7.0/24", "192.0.2.11")
	in.Nodes["v6only"] = node("v6only", "10.0.9.0/24", "2001:db8::9")
	in.Nodes["underlay"] = node("underlay", "192.0.2.128/25", "192.0.2.10")
	d := Compute(in)
	if len(d.Peers) != 2 {
		t.Errorf("peers %+v, want b and c alone", d.Peers)
	}
	all := strings.Join(d.Problems, "\n")
	for _, want := range []string{"node secondnic holds 172.30.7.1, the next hop to default on eth1", "of node thief overlaps 10.0.1.0/24 of node me", "node v6only has no address of the same family",
		"of node underlay overlaps 192.0.2.0/24 of node me's underlay on eth0"} {
		if !strings.Contains(all, want) {
			t.Errorf("problems %q: want %q", all, want)
		}
	}
}
