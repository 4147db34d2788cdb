package bridged

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

// Kinds of places in the table: pods beside those on VLANs, and hosts.
const (
	routed  = "routed"
	node    = "node"
	router  = "router"
	outside = "outside"
)

// seen is the source address that the destination sees.
type seen string

const (
	own     seen = "own"       // the sender's
	itsNode seen = "node"      // the underlay's address of the sender's node
	gateway seen = "gateway"   // an address of fairlead-gw0 of the sender's node
	silence seen = "no answer" // there is no answer
	never   seen = ""          // there is no such pair
)

// reach is one row: between pods and hosts of these kinds, on the same node and on others. Kinds "0", "10", "20" are
// bridged pods by VLAN; "*" is each of the three.
type reach struct {
	from, to string
	// same and other are with encap and masquerade; sameFlat and otherFlat with noEncap and noSNAT, where the underlay
	// routes the podCIDRs. Hosts that are not nodes are on another node than all other places.
	same, other         seen
	sameFlat, otherFlat seen
}

// matrix is the complete table. Every pair of places of the lab is tested in both families.
var matrix = []reach{
	{routed, routed, own, own, own, own},
	{routed, "0", own, itsNode, own, own},
	{routed, "10", own, itsNode, own, own},
	{routed, "20", own, itsNode, own, own},
	{routed, node, own, itsNode, own, own},
	{routed, router, never, itsNode, never, own},
	{routed, outside, never, itsNode, never, own},
	// Through the host, which masquerades: otherwise the answer would return on another path.
	{"0", routed, own, gateway, own, own},
	{"10", routed, own, gateway, own, own},
	{"20", routed, own, gateway, own, own},
	{"*", "*", own, own, own, own},
	{"*", node, own, own, own, own},
	{"*", router, never, own, never, own},
	{"*", outside, never, own, never, own},
	{node, routed, itsNode, gateway, itsNode, itsNode},
	{node, "*", itsNode, itsNode, itsNode, itsNode},
	{node, node, never, itsNode, never, itsNode},
	{node, outside, never, itsNode, never, itsNode},
	{router, "*", never, own, never, own},
	{outside, "*", never, own, never, own},
	{outside, routed, never, silence, never, own},
	{outside, node, never, own, never, own},
}

func (r reach) matches(from, to string) bool {
	is := func(kind, want string) bool {
		return kind == want || want == "*" && (kind == "0" || kind == "10" || kind == "20")
	}
	return is(from, r.from) && is(to, r.to)
}

func (r reach) seen(same, flat bool) seen {
	switch {
	case flat && same:
		return r.sameFlat
	case flat:
		return r.otherFlat
	case same:
		return r.same
	}
	return r.other
}

// places are two pods of each kind on node1, one of each on node2, and all hosts.
func (c cluster) places(t *testing.T) []place {
	t.Helper()
	kinds := []string{routed, "0", "10", "20"}
	all := append(c.addPods(t, "a", kinds, "node1", "node2"), c.addPods(t, "b", kinds, "node1")...)
	for _, name := range c.Nodes() {
		p := c.host(t, name)
		p.kind, p.ips = node, c.addrsOf(name)
		all = append(all, p)
	}
	legs := underlay.Dual.VLANGatewayAddrs
	for name, addrs := range map[string][]netip.Prefix{
		underlay.Outside: underlay.Dual.FarAddrs(),
		underlay.Router:  slices.Concat(legs(0), legs(10), legs(20)),
	} {
		p := c.host(t, name)
		p.kind = name
		for _, a := range addrs {
			p.ips = append(p.ips, a.Addr())
		}
		all = append(all, p)
	}
	return all
}

// all tests the table.
func (c cluster) all(t *testing.T, places []place, flat bool) {
	t.Helper()
	var servers []*server
	for _, p := range places {
		servers = append(servers, serve(t, p)...)
	}
	var calls errgroup.Group
	calls.SetLimit(16)
	tried := map[reach]bool{}
	for _, from := range places {
		for _, s := range servers {
			for _, r := range matrix {
				want := r.seen(from.node == s.at.node, flat)
				if !r.matches(from.kind, s.at.kind) || from.name == s.at.name {
					continue
				}
				tried[r] = true
				calls.Go(func() error {
					if err := c.try(from, s, want); err != nil {
						t.Errorf("%s (%s) to %s: %v", from.name, from.of(s.family()), s, err)
					}
					return nil
				})
			}
		}
	}
	_ = calls.Wait() // errors are reported by each call
	for _, r := range matrix {
		if !tried[r] {
			t.Errorf("nothing of this lab is of the row %+v", r)
		}
	}
}

// try expects the answer in the table.
func (c cluster) try(from place, s *server, want seen) error {
	if want == silence {
		if got, err := call(from, s, impatience); err == nil {
			return fmt.Errorf("there is an answer, to %s, and there should be none", got)
		}
		return nil
	}
	got, err := call(from, s, patience)
	if err != nil {
		return err
	}
	if !c.isOf(got, from, want) {
		return fmt.Errorf("the server sees %s, want that of: %s", got, want)
	}
	return nil
}

func (c cluster) isOf(a netip.Addr, from place, want seen) bool {
	for i, name := range c.Nodes() {
		if name != from.node {
			continue
		}
		nodeAddrs, podCIDRs := c.addrsOf(name), underlay.Dual.PodCIDRs(i+1)
		for family := range 2 {
			if want == itsNode && a == nodeAddrs[family] || want == gateway && a == podCIDRs[family].Addr().Next() {
				return true
			}
		}
	}
	return want == own && slices.Contains(from.ips, a)
}
