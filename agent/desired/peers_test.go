package desired

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

// peerNode parses "NAME PODCIDRS ADDRESSES", lists separated by commas.
func peerNode(s string) inputs.Node {
	f := strings.Fields(s)
	n := inputs.Node{Name: f[0]}
	for p := range strings.SplitSeq(f[1], ",") {
		n.PodCIDRs = append(n.PodCIDRs, netip.MustParsePrefix(p))
	}
	for a := range strings.SplitSeq(f[2], ",") {
		n.Addresses = append(n.Addresses, netip.MustParseAddr(a))
	}
	n.TunnelAddresses = n.Addresses
	return n
}

// modeInputs is a node with one address of each family, and another IPv4 subnet on its interface.
func modeInputs(mode string, peers ...string) Inputs {
	in := dualInputs()
	in.Config.TrafficEncapMode = mode
	in.Transport.Subnets = append(in.Transport.Subnets, netip.MustParsePrefix("198.51.100.0/25"))
	in.Nodes = nodeMap(in.Own)
	for _, s := range peers {
		n := peerNode(s)
		in.Nodes[n.Name] = n
	}
	return in
}

// told is the desired state of the peers, one line each.
func told(d State) string {
	var out []string
	for _, p := range d.Peers {
		s := p.Name
		if p.Tunnel.IsValid() {
			s += " tunnel " + p.Tunnel.String()
		}
		for _, c := range p.PodCIDRs {
			s += fmt.Sprintf("; %s %s", c.Prefix, c.Path)
			if c.Via.IsValid() {
				s += " " + c.Via.String()
			}
		}
		out = append(out, s)
	}
	for _, r := range d.Routes.Routes {
		s := "route " + r.Dst.String()
		if r.Via.IsValid() {
			s += " via " + r.Via.String()
		}
		if r.Src.IsValid() {
			s += " src " + r.Src.String()
		}
		out = append(out, s)
	}
	if len(d.NAT.NotMasqueraded) > 0 {
		out = append(out, fmt.Sprint("unmasked ", d.NAT.NotMasqueraded))
	}
	return strings.Join(append(out, d.Problems...), "\n")
}

func TestPaths(t *testing.T) {
	for _, c := range []struct{ name, peer, encap, noEncap, hybrid string }{
		{"same subnet", "b 10.0.2.0/24,fd00:0:0:2::/64 192.0.2.2,2001:db8::2",
			"b tunnel 192.0.2.2; 10.0.2.0/24 tunnel; fd00:0:0:2::/64 tunnel\n" +
				"route 10.0.2.0/24 src 10.0.1.1\nroute fd00:0:0:2::/64 src fd00:0:0:1::1",
			"b; 10.0.2.0/24 direct 192.0.2.2; fd00:0:0:2::/64 direct 2001:db8::2\n" +
				"route 10.0.2.0/24 via 192.0.2.2\nroute fd00:0:0:2::/64 via 2001:db8::2\n" +
				"unmasked [10.0.2.0/24 fd00:0:0:2::/64]",
			"b tunnel 192.0.2.2; 10.0.2.0/24 direct 192.0.2.2; fd00:0:0:2::/64 direct 2001:db8::2\n" +
				"route 10.0.2.0/24 via 192.0.2.2\nroute fd00:0:0:2::/64 via 2001:db8::2\n" +
				"unmasked [10.0.2.0/24 fd00:0:0:2::/64]"},
		{"another subnet", "b 10.0.2.0/24,fd00:0:0:2::/64 203.0.113.2,2001:db8:9::2",
			"b tunnel 203.0.113.2; 10.0.2.0/24 tunnel; fd00:0:0:2::/64 tunnel\n" +
				"route 10.0.2.0/24 src 10.0.1.1\nroute fd00:0:0:2::/64 src fd00:0:0:1::1",
			"b; 10.0.2.0/24 routers; fd00:0:0:2::/64 routers\nunmasked [10.0.2.0/24 fd00:0:0:2::/64]",
			"b tunnel 203.0.113.2; 10.0.2.0/24 tunnel; fd00:0:0:2::/64 tunnel\n" +
				"route 10.0.2.0/24 src 10.0.1.1\nroute fd00:0:0:2::/64 src fd00:0:0:1::1\n" +
				"unmasked [10.0.2.0/24 fd00:0:0:2::/64]"},
		{"one family each", "b 10.0.2.0/24,fd00:0:0:2::/64 203.0.113.2,2001:db8::2",
			"b tunnel 203.0.113.2; 10.0.2.0/24 tunnel; fd00:0:0:2::/64 tunnel\n" +
				"route 10.0.2.0/24 src 10.0.1.1\nroute fd00:0:0:2::/64 src fd00:0:0:1::1",
			"b; 10.0.2.0/24 routers; fd00:0:0:2::/64 direct 2001:db8::2\n" +
				"route fd00:0:0:2::/64 via 2001:db8::2\nunmasked [10.0.2.0/24 fd00:0:0:2::/64]",
			"b tunnel 203.0.113.2; 10.0.2.0/24 tunnel; fd00:0:0:2::/64 direct 2001:db8::2\n" +
				"route 10.0.2.0/24 src 10.0.1.1\nroute fd00:0:0:2::/64 via 2001:db8::2\n" +
				"unmasked [10.0.2.0/24 fd00:0:0:2::/64]"},
		{"the interface's second subnet", "b 10.0.2.0/24 198.51.100.2",
			"b tunnel 198.51.100.2; 10.0.2.0/24 tunnel\nroute 10.0.2.0/24 src 10.0.1.1",
			"b; 10.0.2.0/24 direct 198.51.100.2\nroute 10.0.2.0/24 via 198.51.100.2\nunmasked [10.0.2.0/24]",
			"b tunnel 198.51.100.2; 10.0.2.0/24 direct 198.51.100.2\nroute 10.0.2.0/24 via 198.51.100.2\n" +
				"unmasked [10.0.2.0/24]"},
		{"just outside of it", "b 10.0.2.0/24 198.51.100.128",
			"b tunnel 198.51.100.128; 10.0.2.0/24 tunnel\nroute 10.0.2.0/24 src 10.0.1.1",
			"b; 10.0.2.0/24 routers\nunmasked [10.0.2.0/24]",
			"b tunnel 198.51.100.128; 10.0.2.0/24 tunnel\nroute 10.0.2.0/24 src 10.0.1.1\nunmasked [10.0.2.0/24]"},
		{"pods of a family that its addresses lack", "b fd00:0:0:2::/64 192.0.2.2",
			"b tunnel 192.0.2.2; fd00:0:0:2::/64 tunnel\nroute fd00:0:0:2::/64 src fd00:0:0:1::1",
			"b; fd00:0:0:2::/64 routers\nunmasked [fd00:0:0:2::/64]",
			"b tunnel 192.0.2.2; fd00:0:0:2::/64 tunnel\nroute fd00:0:0:2::/64 src fd00:0:0:1::1\n" +
				"unmasked [fd00:0:0:2::/64]"},
		{"no address that the tunnel could use", "b fd00:0:0:2::/64 2001:db8::2",
			"node b has no address of the same family as this node's 192.0.2.1: its pods are not reached",
			"b; fd00:0:0:2::/64 direct 2001:db8::2\nroute fd00:0:0:2::/64 via 2001:db8::2\nunmasked [fd00:0:0:2::/64]",
			"b; fd00:0:0:2::/64 direct 2001:db8::2\nroute fd00:0:0:2::/64 via 2001:db8::2\nunmasked [fd00:0:0:2::/64]"},
		{"this node's own address", "b 10.0.2.0/24 192.0.2.1",
			"node b has this node's address 192.0.2.1: its pods are not reached",
			"node b has this node's address 192.0.2.1: its pods are not reached",
			"node b has this node's address 192.0.2.1: its pods are not reached"},
	} {
		for mode, want := range map[string]string{
			api.ModeEncap: c.encap, api.ModeNoEncap: c.noEncap, api.ModeHybrid: c.hybrid,
		} {
			if got := told(Compute(modeInputs(mode, c.peer))); got != want {
				t.Errorf("%s, %s:\n%s\nwant\n%s", c.name, mode, got, want)
			}
		}
	}
}

// An address that denotes a different host on each host, or none, is not a tunnel endpoint. A link-local one is, if it
// is on the link.
func TestPeersWithoutAHost(t *testing.T) {
	for addr, kind := range map[string]string{"127.0.0.2": "loopback", "0.0.0.0": "unspecified", "224.0.0.5": "multicast",
		"255.255.255.255": "broadcast", "169.254.7.7": "link-local"} {
		want := "node b has the " + kind + " address " + addr + ", which no other node can send to. Correct status.addresses " +
			"of the Node, or its annotation node.antrea.io/transport-addresses: its pods are not reached"
		for _, mode := range []string{api.ModeEncap, api.ModeHybrid} {
			if got := told(Compute(modeInputs(mode, "b 10.0.2.0/24 "+addr))); got != want {
				t.Errorf("%s, %s:\n%s\nwant\n%s", addr, mode, got, want)
			}
		}
	}
	in := modeInputs(api.ModeEncap, "b 10.0.2.0/24 169.254.7.7")
	in.Transport.Subnets = append(in.Transport.Subnets, netip.MustParsePrefix("169.254.0.0/16"))
	if got := told(Compute(in)); !strings.HasPrefix(got, "b tunnel 169.254.7.7") {
		t.Errorf("on the link: %s", got)
	}
	for addr, kind := range map[string]string{"::1": "loopback", "::": "unspecified", "ff02::1": "multicast",
		"fe80::1": "link-local", "2001:db8::1": "", "192.0.2.1": ""} {
		if got := noHost(netip.MustParseAddr(addr)); got != kind {
			t.Errorf("%s: %q, want %q", addr, got, kind)
		}
	}
}

// The desired state of all peers, whatever the order of the Nodes, is that of each peer alone, sorted.
func TestPeersInAnyOrder(t *testing.T) {
	for _, mode := range []string{api.ModeEncap, api.ModeNoEncap, api.ModeHybrid} {
		var all []string
		for i := range 60 {
			all = append(all, fmt.Sprintf("n%02d 10.1.%d.0/24,fd00:0:1:%x::/64 %s%d,2001:db8:%x::%d", i, i, i,
				[]string{"192.0.2.", "203.0.113.", "198.51.100."}[i%3], 10+i, i%2, 10+i))
		}
		var peers []Peer
		for _, s := range all {
			peers = append(peers, Compute(modeInputs(mode, s)).Peers...)
		}
		want := Compute(modeInputs(mode, all...))
		if !reflect.DeepEqual(want.Peers, peers) {
			t.Fatalf("%s: peers together differ from peers alone", mode)
		}
		for range 10 {
			rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			if got := Compute(modeInputs(mode, all...)); !reflect.DeepEqual(got, want) {
				t.Fatalf("%s: another order gives\n%s\nwant\n%s", mode, told(got), told(want))
			}
		}
	}
}

// After a peer has changed, or two have swapped podCIDRs, the result is the same as after a start with the new state:
// nothing of the old one is remembered. While both peers of a swap claim one range, the one created first has it.
func TestPeersThatChange(t *testing.T) {
	b, c := "b 10.0.2.0/24 192.0.2.2", "c 10.0.3.0/24 203.0.113.3"
	for _, mode := range []string{api.ModeEncap, api.ModeNoEncap, api.ModeHybrid} {
		for name, state := range map[string][]string{
			"as it was": {b, c}, "address": {"b 10.0.2.0/24 192.0.2.22", c}, "podCIDR": {"b 10.0.22.0/24 192.0.2.2", c},
			"both": {"b 10.0.22.0/24 192.0.2.22", c}, "moves out": {"b 10.0.2.0/24 203.0.113.2", c},
			"moves in": {b, "c 10.0.3.0/24 192.0.2.3"}, "gone": {c},
			"swapped": {"b 10.0.3.0/24 192.0.2.2", "c 10.0.2.0/24 203.0.113.3"},
		} {
			d := Compute(modeInputs(mode, state...))
			if len(d.Peers) != len(state) || len(d.Problems) != 0 {
				t.Errorf("%s, %s: %s", mode, name, told(d))
			}
			for i, s := range state {
				f := strings.Fields(s)
				if p := d.Peers[i]; p.Name != f[0] || p.PodCIDRs[0].String() != f[1] {
					t.Errorf("%s, %s: peer %+v, want %s", mode, name, p, s)
				}
			}
		}
		half := modeInputs(mode, "b 10.0.3.0/24 192.0.2.2", c)
		young := half.Nodes["b"]
		young.Created = time.Unix(2, 0)
		half.Nodes["b"] = young
		d := Compute(half)
		if len(d.Peers) != 1 || d.Peers[0].Name != "c" || !strings.Contains(strings.Join(d.Problems, ""), "and so has node c") {
			t.Errorf("%s, half swapped: %s", mode, told(d))
		}
	}
}

// The cost of a round with thousands of peers grows linearly, not quadratically: memory allocations are counted.
func TestComputeGrowsWithPeers(t *testing.T) {
	for _, mode := range []string{api.ModeEncap, api.ModeNoEncap, api.ModeHybrid} {
		some, many := allocations(t, mode, 500), allocations(t, mode, 5000)
		t.Logf("%s: %.0f allocations for 500 peers, %.0f for 5000", mode, some, many)
		if many > 15*some {
			t.Errorf("%s: %.0f allocations for 500 peers, and %.0f for 5000", mode, some, many)
		}
	}
}

// allocations is the number of memory allocations of Compute with this many peers.
func allocations(t *testing.T, mode string, peers int) float64 {
	in := modeInputs(mode)
	in.Transport.Subnets = []netip.Prefix{netip.MustParsePrefix("172.16.0.0/13")}
	in.Needed = []link.Needed{}
	for i := range peers {
		n := peerNode(fmt.Sprintf("n%04d 100.%d.%d.0/24 172.%d.%d.%d", i, 64+i>>8, i&255, 16+8*(i%2), i>>8, i&255))
		in.Nodes[n.Name] = n
	}
	if d := Compute(in); len(d.Peers) != peers || len(d.NAT.NotMasqueraded) > 10 {
		t.Errorf("%s: %d peers, %d ranges unmasked; problems %.3q", mode, len(d.Peers), len(d.NAT.NotMasqueraded), d.Problems)
	}
	return testing.AllocsPerRun(1, func() { Compute(in) })
}

// Only the userspace datapath needs a transport interface of its own, and only for peers behind the tunnel.
func TestNoTunnel(t *testing.T) {
	tunnelled := []Peer{{Name: "b", PodCIDRs: []PeerCIDR{{Prefix: netip.MustParsePrefix("10.1.1.0/24"), Path: PathTunnel}}}}
	direct := []Peer{{Name: "b", PodCIDRs: []PeerCIDR{{Prefix: netip.MustParsePrefix("10.1.1.0/24"), Path: PathDirect}}}}
	for name, c := range map[string]struct {
		transport string
		peers     []Peer
		datapath  string
		works     bool
	}{
		"a NIC":                    {"eth0", tunnelled, "netdev", false},
		"a bridge of Open vSwitch": {"br-phy", tunnelled, "netdev", true},
		"the kernel's datapath":    {"eth0", tunnelled, "system", true},
		"no tunnel":                {"eth0", direct, "netdev", true},
		"no peers":                 {"eth0", nil, "netdev", true},
		"no bridge yet":            {"eth0", tunnelled, "", true},
	} {
		obs := ovsdb.Observed{DatapathType: c.datapath, Devices: []string{"br-int", "br-phy"}}
		if err := NoTunnel(link.Transport{Name: c.transport}, c.peers, obs); (err == nil) != c.works {
			t.Errorf("%s: %v, works: %t", name, err, c.works)
		}
	}
}
