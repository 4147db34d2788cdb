package services

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/kube/inputs"
)

// endpoint reads "10.0.0.1 ready node=a zone=x for-zone=x for-node=a": without a condition it is not ready.
func endpoint(t *testing.T, s string) inputs.Endpoint {
	t.Helper()
	words := strings.Fields(s)
	e := inputs.Endpoint{Addr: netip.MustParseAddr(words[0])}
	hints := &inputs.Hints{}
	for _, w := range words[1:] {
		k, v, _ := strings.Cut(w, "=")
		switch k {
		case "ready":
			e.Ready, e.Serving = true, true
		case "serving":
			e.Serving = true
		case "terminating":
			e.Terminating = true
		case "node":
			e.Node = v
		case "for-zone":
			hints.ForZones, e.Hints = append(hints.ForZones, v), hints
		case "for-node":
			hints.ForNodes, e.Hints = append(hints.ForNodes, v), hints
		default:
			t.Fatal(s)
		}
	}
	return e
}

// If there are more endpoints than Open vSwitch accepts, nodes use different selections, so that no endpoint is omitted
// by all, and each node keeps most of its selection when some endpoints leave and others join.
func TestMost(t *testing.T) {
	endpoints := func(from, to int) (out []netip.AddrPort) {
		for i := from; i < to; i++ {
			out = append(out, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 80))
		}
		return out
	}
	if got := Most(endpoints(0, 500), 500, "a"); !slices.Equal(got, endpoints(0, 500)) {
		t.Errorf("of 500 it takes %d", len(got))
	}
	used := map[netip.AddrPort]int{}
	for node := range 20 {
		name := fmt.Sprint("node", node)
		got := Most(endpoints(0, 1000), 500, name)
		if len(got) != 500 || !slices.IsSortedFunc(got, netip.AddrPort.Compare) {
			t.Fatalf("%s takes %d, in order: %t", name, len(got), slices.IsSortedFunc(got, netip.AddrPort.Compare))
		}
		for _, e := range got {
			used[e]++
		}
		next := Most(endpoints(10, 1010), 500, name)
		lost := slices.DeleteFunc(got, func(e netip.AddrPort) bool { return slices.Contains(next, e) })
		if len(lost) > 20 {
			t.Errorf("%s leaves %d of 500 when 10 of 1,000 are others", name, len(lost))
		}
	}
	if len(used) != 1000 {
		t.Errorf("%d of 1,000 endpoints have clients on any of 20 nodes", len(used))
	}
}

// The endpoints in use, according to kube-proxy's documentation.
func TestEndpointsInForce(t *testing.T) {
	for _, c := range []struct {
		name      string
		endpoints []string
		local     bool
		want      string // last bytes of addresses
	}{
		{"none", nil, false, ""},
		{"all that are ready", []string{"10.0.0.2 ready", "10.0.0.1 ready", "10.0.0.3"}, false, "1 2"},
		{"off the cluster, without a node", []string{"10.0.0.1 ready"}, false, "1"},
		{"terminating ones are not ready", []string{"10.0.0.1 ready", "10.0.0.2 serving terminating"}, false, "1"},
		{"terminating ones are better than none", []string{"10.0.0.1", "10.0.0.2 serving terminating"}, false, "2"},
		{"but not those that do not serve", []string{"10.0.0.1", "10.0.0.2 terminating"}, false, ""},
		{"not ready and not terminating: never", []string{"10.0.0.1 serving"}, false, ""},
		{"one in two slices", []string{"10.0.0.1", "10.0.0.1 ready"}, false, "1"},
		{"one in two slices, the other way round", []string{"10.0.0.1 ready", "10.0.0.1"}, false, "1"},
		{"one in two slices, terminating", []string{"10.0.0.1", "10.0.0.1 serving terminating"}, false, "1"},
		{"one in two slices, the node in one", []string{"10.0.0.1 ready", "10.0.0.1 ready node=me"}, true, "1"},
		{"one in two slices, the hint in one", []string{"10.0.0.1 ready", "10.0.0.1 ready for-zone=here", "10.0.0.2 ready for-zone=there"}, false, "1"},

		{"Local", []string{"10.0.0.1 ready node=me", "10.0.0.2 ready node=other", "10.0.0.3 ready"}, true, "1"},
		{"Local without any", []string{"10.0.0.2 ready node=other"}, true, ""},
		{"Local, terminating", []string{"10.0.0.1 serving terminating node=me", "10.0.0.2 ready node=other"}, true, "1"},
		{"Local takes no hints", []string{"10.0.0.1 ready node=me for-zone=there", "10.0.0.2 ready node=me for-zone=here"}, true, "1 2"},

		{"hints for zones", []string{"10.0.0.1 ready for-zone=here", "10.0.0.2 ready for-zone=there"}, false, "1"},
		{"for two", []string{"10.0.0.1 ready for-zone=there for-zone=here", "10.0.0.2 ready for-zone=here"}, false, "1 2"},
		{"one without a hint: all", []string{"10.0.0.1 ready for-zone=here", "10.0.0.2 ready"}, false, "1 2"},
		{"an unready one without a hint does not count", []string{"10.0.0.1 ready for-zone=here", "10.0.0.3 ready for-zone=there", "10.0.0.2"}, false, "1"},
		{"none for here: all", []string{"10.0.0.1 ready for-zone=there"}, false, "1"},
		{"hints for nodes", []string{"10.0.0.1 ready for-node=me", "10.0.0.2 ready for-node=other"}, false, "1"},
		{"none for this node, but for its zone", []string{"10.0.0.1 ready for-node=x for-zone=there", "10.0.0.2 ready for-node=other for-zone=here"}, false, "2"},
		{"nodes before zones", []string{"10.0.0.1 ready for-node=me for-zone=there", "10.0.0.2 ready for-node=other for-zone=here"}, false, "1"},
		{"hinted ones unready: all", []string{"10.0.0.1 for-zone=here", "10.0.0.2 ready for-zone=there"}, false, "2"},
		{"none ready: terminating ones whatever their hints", []string{"10.0.0.1 for-zone=here", "10.0.0.2 serving terminating for-zone=there"}, false, "2"},
	} {
		s := inputs.Service{Local: c.local, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
			Ports: []inputs.ServicePort{{Protocol: 6, Port: 80}}}
		var all []inputs.EndpointSlice
		for _, e := range c.endpoints {
			all = append(all, inputs.EndpointSlice{Ports: []inputs.ServicePort{{Protocol: 6, Port: 8080}},
				Endpoints: []inputs.Endpoint{endpoint(t, e)}})
		}
		for range 3 { // the order of slices does not matter
			var got []string
			for _, to := range Of(s, all, Node{"me", "here"})[Key{s.ClusterIPs[0], 6, 80}].Endpoints {
				got = append(got, fmt.Sprint(to.Addr().As4()[3]))
				if to.Port() != 8080 {
					t.Errorf("%s: to port %d", c.name, to.Port())
				}
			}
			if got := strings.Join(got, " "); got != c.want {
				t.Errorf("%s: endpoints %q, want %q", c.name, got, c.want)
			}
			got = nil
			for _, e := range Explain(s, all, Node{"me", "here"})[Key{s.ClusterIPs[0], 6, 80}] {
				if e.Why == "" {
					got = append(got, fmt.Sprint(e.To.Addr().As4()[3]))
				}
			}
			if got := strings.Join(got, " "); got != c.want {
				t.Errorf("%s: explained as %q, want %q", c.name, got, c.want)
			}
			rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		}
	}
}

// Endpoints that are not used have a reason.
func TestExplain(t *testing.T) {
	for _, c := range []struct {
		endpoint string
		local    bool
		why      string
	}{
		{"10.0.0.1 node=me", false, "not ready"},
		{"10.0.0.1 terminating", false, "terminating"},
		{"10.0.0.1 serving terminating", false, "terminating, and others are ready"},
		{"10.0.0.1 ready node=other", true, "not on this node (internalTrafficPolicy: Local)"},
		{"10.0.0.1 ready for-zone=there", false, "for clients of other nodes or zones (its hints)"},
	} {
		s := inputs.Service{Local: c.local, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
			Ports: []inputs.ServicePort{{Protocol: 6, Port: 80}}}
		all := []inputs.EndpointSlice{{Ports: []inputs.ServicePort{{Protocol: 6, Port: 8080}},
			Endpoints: []inputs.Endpoint{endpoint(t, "10.0.0.9 ready node=me for-zone=here"), endpoint(t, c.endpoint)}}}
		got := Explain(s, all, Node{"me", "here"})[Key{s.ClusterIPs[0], 6, 80}]
		if len(got) != 2 || got[0].Why != c.why || got[1].Why != "" {
			t.Errorf("%s: %+v, want %q", c.endpoint, got, c.why)
		}
	}
}

// A node without a zone has no hints for it.
func TestWithoutAZone(t *testing.T) {
	s := inputs.Service{ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Ports: []inputs.ServicePort{{Protocol: 6, Port: 80}}}
	all := []inputs.EndpointSlice{{Ports: []inputs.ServicePort{{Protocol: 6, Port: 80}},
		Endpoints: []inputs.Endpoint{endpoint(t, "10.0.0.1 ready for-zone=a"), endpoint(t, "10.0.0.2 ready for-zone=b")}}}
	if got := Of(s, all, Node{"me", ""})[Key{s.ClusterIPs[0], 6, 80}].Endpoints; len(got) != 2 {
		t.Errorf("endpoints %v", got)
	}
}

// Ports are found by name and protocol, and each slice may have another number for them; each ClusterIP has endpoints
// of its own family.
func TestPortsAndFamilies(t *testing.T) {
	v4, v6 := netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("fd00:10:96::1")
	s := inputs.Service{ClusterIPs: []netip.Addr{v4, v6},
		Affinity: time.Hour,
		Ports: []inputs.ServicePort{{Name: "dns", Protocol: 17, Port: 53}, {Name: "dns-tcp", Protocol: 6,
			Port: 53}, {Name: "gone", Protocol: 6, Port: 9}, {Name: "odd", Port: 1}}}
	ports := func(n uint16) []inputs.ServicePort {
		return []inputs.ServicePort{{Name: "dns-tcp", Protocol: 6, Port: n}, {Name: "dns", Protocol: 17, Port: n + 1}}
	}
	all := []inputs.EndpointSlice{
		{Ports: ports(1053), Endpoints: []inputs.Endpoint{endpoint(t, "10.0.0.1 ready")}},
		{Ports: ports(2053), Endpoints: []inputs.Endpoint{endpoint(t, "10.0.0.2 ready")}},
		{Ports: ports(3053), Endpoints: []inputs.Endpoint{endpoint(t, "fd00::1 ready")}},
	}
	to := func(list ...string) Backends {
		b := Backends{Affinity: time.Hour, Endpoints: []netip.AddrPort{}}
		for _, a := range list {
			b.Endpoints = append(b.Endpoints, netip.MustParseAddrPort(a))
		}
		return b
	}
	want := map[Key]Backends{
		{v4, 17, 53}: to("10.0.0.1:1054", "10.0.0.2:2054"), {v4, 6, 53}: to("10.0.0.1:1053", "10.0.0.2:2053"), {v4, 6, 9}: to(),
		{v6, 17, 53}: to("[fd00::1]:3054"), {v6, 6, 53}: to("[fd00::1]:3053"), {v6, 6, 9}: to(),
	}
	if got := Of(s, all, Node{}); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if got := Of(inputs.Service{Ports: s.Ports}, all, Node{}); len(got) > 0 { // headless, or of type ExternalName
		t.Errorf("without a ClusterIP: %v", got)
	}
}
