package desired

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

func node(name string, podCIDR string, addr string) inputs.Node {
	n := inputs.Node{Name: name}
	if podCIDR != "" {
		n.PodCIDRs = []netip.Prefix{netip.MustParsePrefix(podCIDR)}
	}
	if addr != "" {
		n.Addresses = []netip.Addr{netip.MustParseAddr(addr)}
		n.TunnelAddresses = n.Addresses
	}
	return n
}

func nodeMap(nodes ...inputs.Node) map[string]inputs.Node {
	m := map[string]inputs.Node{}
	for _, n := range nodes {
		m[n.Name] = n
	}
	return m
}

func TestCheckOwn(t *testing.T) {
	peer := node("b", "10.0.2.0/24", "192.0.2.2")
	for _, c := range []struct {
		name  string
		nodes map[string]inputs.Node
		want  string // in the error; empty: accepted
	}{
		{"its own", nodeMap(node("a", "10.0.1.0/24", "192.0.2.1"), peer), ""},
		{"no Node", nodeMap(peer), "there is no Node a in the manifests (Nodes there: b)"},
		{"none at all", nodeMap(), "(Nodes there: none)"},
		{"empty", nodeMap(node("a", "", ""), peer), "node a has no podCIDR"},
		{"empty names what is taken", nodeMap(node("a", "", ""), peer), "10.0.2.0/24 by b"},
		{"no room", nodeMap(node("a", "10.0.1.0/31", "")), "no room for pods"},
		{"no room, IPv6", nodeMap(node("a", "fd00::/127", "")), "at least /126"},
		{"equal", nodeMap(node("a", "10.0.2.0/24", ""), peer), "node a has the podCIDR 10.0.2.0/24, and so has node b"},
		{"overlap", nodeMap(node("a", "10.0.0.0/16", ""), peer), "10.0.0.0/16 of node a overlaps 10.0.2.0/24 of node b"},
		{"inside", nodeMap(node("a", "10.0.2.128/25", ""), peer), "overlaps 10.0.2.0/24 of node b"},
		{"own address", nodeMap(node("a", "192.0.2.0/24", "192.0.2.1")), "holds the address 192.0.2.1 of node a"},
		{"peer's address", nodeMap(node("a", "192.0.2.0/25", ""), peer), "holds the address 192.0.2.2 of node b"},
	} {
		got, err := CheckOwn("a", c.nodes, "the manifests")
		if c.want == "" {
			if err != nil || len(got.PodCIDRs) != 1 {
				t.Errorf("%s: got %v, %v", c.name, got, err)
			}
			continue
		}
		if podCIDR := (*PodCIDRError)(nil); !errors.As(err, &podCIDR) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want a PodCIDRError with %q", c.name, err, c.want)
		}
	}
}

func TestConflictingNodes(t *testing.T) {
	old, young := node("old", "10.0.5.0/24", ""), node("new", "10.0.5.0/24", "")
	old.Created, young.Created = time.Unix(1, 0), time.Unix(2, 0)
	me := node("me", "", "")
	taken := []cidrClaim{{netip.MustParsePrefix("10.0.1.0/24"), &me}}
	mine := []link.Needed{{Addr: netip.MustParseAddr("198.51.100.1"), What: "the next hop to default on eth1"}}
	for _, c := range []struct {
		name  string
		nodes []inputs.Node
		want  map[string]string // node -> part of its message
	}{
		{"none", []inputs.Node{node("a", "10.0.2.0/24", "192.0.2.1"), node("b", "10.0.3.0/24", "192.0.2.2")}, nil},
		{"own range", []inputs.Node{node("a", "10.0.1.0/25", "")}, map[string]string{"a": "10.0.1.0/24 of node me"}},
		{"own address", []inputs.Node{node("a", "198.51.100.0/24", "")}, map[string]string{"a": "198.51.100.1, the next hop to default on eth1"}},
		{"the newcomer loses", []inputs.Node{young, old}, map[string]string{"new": "and so has node old"}},
		{"no times: by name", []inputs.Node{node("b", "10.0.2.0/24", ""), node("a", "10.0.2.0/23", "")},
			map[string]string{"b": "overlaps 10.0.2.0/23 of node a"}},
		{"a peer's address", []inputs.Node{node("a", "192.0.2.0/24", ""), node("b", "10.0.3.0/24", "192.0.2.9")},
			map[string]string{"a": "192.0.2.9"}},
		{"not next to each other", []inputs.Node{node("a", "10.0.0.0/8", ""), node("b", "10.9.0.0/16", ""),
			node("c", "10.200.0.0/16", "")}, map[string]string{"a": "me", "b": "", "c": ""}},
	} {
		var nodes []*inputs.Node
		for i := range c.nodes {
			nodes = append(nodes, &c.nodes[i])
		}
		got := conflictingNodes(nodes, taken, mine)
		for name, sentence := range c.want {
			if sentence != "" && !strings.Contains(got[name], sentence) {
				t.Errorf("%s: node %s: got %q, want %q in it", c.name, name, got[name], sentence)
			}
		}
		for name := range got {
			if sentence, ok := c.want[name]; !ok || sentence == "" {
				t.Errorf("%s: node %s is refused: %s", c.name, name, got[name])
			}
		}
	}
}

func TestUnpinnedPods(t *testing.T) {
	pod := func(name, addr string) api.Attachment {
		return api.Attachment{PodNamespace: "default", PodName: name, Addrs: []netip.Prefix{netip.MustParsePrefix(addr)}}
	}
	own := inputs.Node{Name: "me", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.2.0/24")}}
	if err := OutsideError(own, OutsidePodCIDRs(own, []api.Attachment{pod("in", "10.0.2.9/24")})); err != nil {
		t.Errorf("none OutsidePodCIDRs: %v", err)
	}
	err := OutsideError(own, OutsidePodCIDRs(own, []api.Attachment{pod("old", "10.0.1.9/24"), pod("in", "10.0.2.9/24"), pod("b", "10.0.1.8/24")}))
	if err == nil || !strings.Contains(err.Error(), "(default/b, default/old)") ||
		!strings.Contains(err.Error(), "[10.0.2.0/24] of node me") {
		t.Errorf("two stray: %v", err)
	}
}

// A podCIDR must not contain what the node needs, on any interface. The gateway with the name of an earlier config is
// exempt.
func TestTakesFromNode(t *testing.T) {
	needed := []link.Needed{
		{Addr: netip.MustParseAddr("172.30.7.1"), What: "the next hop to default on eth1"},
		{Addr: netip.MustParseAddr("10.0.1.1"), What: "the address of old-gw0", Internal: true},
		{Addr: netip.MustParseAddr("10.0.2.1"), What: "the address of cni0"},
	}
	transport := link.Transport{Name: "eth0", Subnets: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}
	for podCIDR, want := range map[string]string{
		"10.0.1.0/24":    "",
		"172.30.6.0/24":  "",
		"172.30.7.0/24":  "holds 172.30.7.1, the next hop to default on eth1",
		"10.0.2.0/24":    "holds 10.0.2.1, the address of cni0",
		"10.0.0.0/16":    "holds 10.0.1.1, the address of old-gw0",
		"192.0.2.128/25": "overlaps 192.0.2.0/24, the network of eth0",
	} {
		err := CheckReserved(node("a", podCIDR, ""), transport, needed)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("podCIDR %s: got %v, want %q", podCIDR, err, want)
		}
	}
}
