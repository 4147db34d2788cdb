package nodecidr

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/ipam/blocks"
)

func ranges(s ...string) (out []blocks.Range) {
	for _, one := range s {
		cidr, mask, _ := strings.Cut(one, " ")
		r := blocks.Range{Cluster: netip.MustParsePrefix(cidr)}
		_, _ = fmt.Sscan(mask, &r.Mask)
		out = append(out, r)
	}
	return out
}

func prefixes(s ...string) (out []netip.Prefix) {
	for _, one := range s {
		out = append(out, netip.MustParsePrefix(one))
	}
	return out
}

func node(name string, age int, podCIDRs ...string) Node {
	return Node{Name: name, UID: "uid-" + name, PodCIDRs: prefixes(podCIDRs...), Created: time.Unix(int64(1000+age), 0)}
}

func mustMake(t *testing.T, f Facts) Plan {
	t.Helper()
	p, err := Make(f)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestNodesGetBlocksInOrder(t *testing.T) {
	p := mustMake(t, Facts{
		Ranges:   ranges("10.0.0.0/22 24", "fd00::/48 64", "10.9.0.0/23 24"),
		Services: prefixes("10.0.1.0/25"),
		Nodes:    []Node{node("c", 3), node("b", 1), node("a", 1), node("old", 0, "10.0.2.128/26", "fd00:0:0:1::/64"), node("d", 4)},
		Claims:   []Claim{{PodCIDR: prefixes("10.9.0.0/24")[0], Node: "c", UID: "uid-c"}}})
	want := []string{"a [10.0.0.0/24 fd00::/64]", "b [10.0.3.0/24 fd00:0:0:2::/64]", "c [10.9.0.0/24 fd00:0:0:3::/64]",
		"d [10.9.1.0/24 fd00:0:0:4::/64]"}
	var got []string
	for _, g := range p.Assignments {
		got = append(got, fmt.Sprint(g.Node, " ", g.PodCIDRs))
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if c := p.Assignments[2].Claimed; !slices.Equal(c, prefixes("10.9.0.0/24")) {
		t.Errorf("c has claimed %v", c)
	}
	if u := p.Usage; u[0].Used != 4 || u[0].Total != 4 || u[2].Used != 2 || u[1].Used != 5 {
		t.Errorf("usage %+v", u)
	}
}

func TestWhoGetsNothing(t *testing.T) {
	leaving := node("leaving", 9)
	leaving.Leaving = true
	host := node("host", 8, "10.0.1.0/24", "fd00::/64")
	host.Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.7")} // a node's address is in the last block
	p := mustMake(t, Facts{Ranges: ranges("10.0.0.0/23 24", "fd00::/60 64"), Nodes: []Node{node("a", 1), leaving, host}})
	if len(p.Assignments) != 0 || len(p.Waiting) != 1 || p.Waiting[0].Node != "a" {
		t.Fatalf("%+v", p)
	}
	for _, part := range []string{"no IPv4 podCIDR is left", "10.0.0.0/23 cut into /24 has 2", "nodeIPAM.clusterCIDRs"} {
		if !strings.Contains(p.Waiting[0].Why, part) {
			t.Errorf("%s: does not say %s", p.Waiting[0].Why, part)
		}
	}
	if strings.Contains(p.Waiting[0].Why, "IPv6") {
		t.Error(p.Waiting[0].Why)
	}
}

// Addresses of IPPools are bridged pods'. A block with one of them is not assigned, and the message for a Node that
// waits for that reason names the pools.
func TestBlocksOfPoolsAreLeftOut(t *testing.T) {
	f := Facts{Ranges: ranges("10.0.0.0/22 24"), Nodes: []Node{node("a", 1), node("b", 2), node("c", 3), node("d", 4)},
		Pools: map[string][]netip.Prefix{"lan": prefixes("10.0.1.16/28", "10.0.1.200/32"), "far": prefixes("10.1.0.0/24")}}
	p := mustMake(t, f)
	for _, g := range p.Assignments {
		if g.PodCIDRs[0].Overlaps(netip.MustParsePrefix("10.0.1.0/24")) {
			t.Errorf("%s gets %s, in which pool lan has addresses", g.Node, g.PodCIDRs[0])
		}
	}
	if len(p.Assignments) != 3 || len(p.Waiting) != 1 || p.Usage[0].Used != 4 {
		t.Fatalf("%+v", p)
	}
	waits := func(p Plan, want string) {
		t.Helper()
		if len(p.Waiting) == 0 || !strings.Contains(p.Waiting[0].Why, want) {
			t.Errorf("%+v: does not say %q", p.Waiting, want)
		}
	}
	waits(p, "10.0.0.0/22 cut into /24 has 4, and all are in use, 1 by IPPool lan. Add")
	// One that was claimed before the pool existed, and not written to the Node, is released.
	f.Claims = []Claim{{PodCIDR: prefixes("10.0.1.0/24")[0], Node: "a", UID: "uid-a"}}
	if p := mustMake(t, f); len(p.Release) != 1 {
		t.Errorf("the claim is kept: %+v", p)
	}
	f.Claims = nil
	for i := range 7 {
		f.Pools[fmt.Sprint("p", i)] = prefixes("10.0.2.0/24")
	}
	waits(mustMake(t, f), "2 by IPPools lan, p0, p1 and 5 more")
}

// A released block rests: the search continues after the one that was assigned last.
func TestBlocksRest(t *testing.T) {
	f := Facts{Ranges: ranges("10.0.0.0/22 24"), Nodes: []Node{node("new", 5)},
		Claims: []Claim{{PodCIDR: prefixes("10.0.2.0/24")[0], Node: "gone", UID: "uid-gone", Created: time.Unix(50, 0)}}}
	if p := mustMake(t, f); p.Assignments[0].PodCIDRs[0] != prefixes("10.0.3.0/24")[0] || len(p.Release) != 1 {
		t.Errorf("behind the newest claim: %+v", p)
	}
	f.Last = prefixes("10.0.3.0/24")
	if p := mustMake(t, f); p.Assignments[0].PodCIDRs[0] != prefixes("10.0.0.0/24")[0] {
		t.Errorf("behind the last of the range: %+v", p)
	}
}

func TestClaims(t *testing.T) {
	claim := func(p, n string) Claim { return Claim{PodCIDR: prefixes(p)[0], Node: n, UID: "uid-" + n} }
	p := mustMake(t, Facts{Ranges: ranges("10.0.0.0/16 24"),
		Nodes: []Node{node("has", 1, "10.0.1.0/24"), node("other", 2, "10.0.2.0/24"), node("two", 3), node("stale", 4)},
		Claims: []Claim{claim("10.0.1.0/24", "has"), claim("10.0.3.0/24", "other"), claim("10.0.4.0/24", "gone"),
			claim("10.0.6.0/24", "two"), claim("10.0.5.0/24", "two"), // after a crash in between
			claim("10.0.2.0/24", "stale"), // another Node's now
			claim("10.1.0.0/24", "stale"), claim("10.0.8.0/25", "stale")}})
	var released []string
	for _, c := range p.Release {
		released = append(released, c.PodCIDR.String())
	}
	slices.Sort(released)
	if want := []string{"10.0.2.0/24", "10.0.3.0/24", "10.0.4.0/24", "10.0.8.0/25", "10.1.0.0/24"}; !slices.Equal(released, want) {
		t.Errorf("released %v, want %v", released, want)
	}
	if g := p.Assignments[0]; g.Node != "two" || g.PodCIDRs[0].String() != "10.0.5.0/24" {
		t.Errorf("%+v", g)
	}
}

func TestFaults(t *testing.T) {
	p := mustMake(t, Facts{Ranges: ranges("10.0.0.0/16 24", "fd00::/48 64"), Services: prefixes("10.96.0.0/12"),
		Nodes: []Node{
			node("a", 1, "10.0.1.0/24", "fd00::/64"), node("b", 2, "10.0.1.0/24", "fd00:0:0:1::/64"),
			node("c", 3, "10.0.1.128/25", "fd00:0:0:2::/64"), node("out", 4, "10.97.0.0/24", "fd00:0:0:3::/64"),
			node("half", 5, "10.0.7.0/24"), node("fine", 6, "10.0.6.0/24", "fd00:0:0:4::/64")}})
	var got []string
	for _, f := range p.Faults {
		t.Log(f.Text)
		got = append(got, fmt.Sprintf("%s %s %s", f.Kind, f.Node, f.Other))
	}
	slices.Sort(got)
	want := []string{"Incomplete half ", "Outside out ", "Service out ", "Shared a b", "Shared b c"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestBadRanges(t *testing.T) {
	for _, r := range [][]blocks.Range{ranges("10.0.0.0/24 16"), ranges("10.0.0.0/16 24", "10.0.128.0/17 24")} {
		if p, err := Make(Facts{Ranges: r}); err == nil {
			t.Errorf("%v: %+v", r, p)
		} else {
			t.Log(err)
		}
	}
}

// A claim whose Node is gone keeps its block until it is released, and messages for waiting Nodes mention it.
func TestClaimsOfDeletedNodes(t *testing.T) {
	f := Facts{Ranges: ranges("10.0.0.0/23 24", "fd00::/63 64"), Nodes: []Node{node("new", 9)}}
	for i, p := range []string{"10.0.0.0/24", "10.0.1.0/24", "fd00::/64", "10.9.0.0/24"} {
		f.Claims = append(f.Claims, Claim{PodCIDR: prefixes(p)[0], Node: "gone", UID: fmt.Sprint("uid-gone", i)})
	}
	p := mustMake(t, f)
	if len(p.Release) != 4 || len(p.Assignments) != 0 || len(p.Waiting) != 1 {
		t.Fatalf("%+v", p)
	}
	if want := "has 2, and all are in use, 2 of deleted Nodes whose pods may still run. Add"; !strings.Contains(p.Waiting[0].Why, want) {
		t.Errorf("%s: does not say %q", p.Waiting[0].Why, want)
	}
}

// In any state: no assignment overlaps what others have, each has one block of each family, and all Nodes that waited
// get theirs or are listed as waiting.
func TestAssignmentsTouchNothing(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 3000 {
		f := randomFacts(random)
		p := mustMake(t, f)
		if err := check(f, p); err != nil {
			t.Fatalf("%v\nfacts %+v\nplan %+v", err, f, p)
		}
	}
}

func randomFacts(random *rand.Rand) Facts {
	f := Facts{Ranges: [][]blocks.Range{ranges("10.0.0.0/21 24"), ranges("10.0.0.0/22 24", "10.0.6.0/23 25", "fd00::/61 64"),
		ranges("fd00::/60 64")}[random.IntN(3)]}
	block := func() netip.Prefix {
		r := f.Ranges[random.IntN(len(f.Ranges))]
		p := r.Block(random.Uint64N(r.Blocks()))
		return netip.PrefixFrom(p.Addr(), p.Bits()-random.IntN(2)).Masked()
	}
	if random.IntN(3) == 0 {
		f.Services = append(f.Services, block())
	}
	if random.IntN(3) == 0 {
		f.Pools = map[string][]netip.Prefix{"p": {block(), netip.PrefixFrom(block().Addr().Next(), 28)}}
	}
	for i := range random.IntN(10) {
		n := node(fmt.Sprint("n", i), random.IntN(5))
		if random.IntN(2) == 0 {
			n.PodCIDRs = []netip.Prefix{block()}
		}
		if random.IntN(4) == 0 {
			n.Addresses = []netip.Addr{block().Addr().Next()}
		}
		n.Leaving = random.IntN(8) == 0
		f.Nodes = append(f.Nodes, n)
	}
	for range random.IntN(5) {
		c := Claim{PodCIDR: block(), UID: fmt.Sprint("uid-n", random.IntN(12)), Created: time.Unix(int64(random.IntN(9)), 0)}
		if !slices.ContainsFunc(f.Claims, func(d Claim) bool { return d.PodCIDR.Overlaps(c.PodCIDR) }) {
			f.Claims = append(f.Claims, c)
		}
	}
	if random.IntN(2) == 0 {
		f.Last = append(f.Last, block())
	}
	return f
}

func check(f Facts, p Plan) error {
	done := map[string]bool{}
	for i, g := range p.Assignments {
		done[g.UID] = true
		if len(g.PodCIDRs) != len(families(f.Ranges)) {
			return fmt.Errorf("%s gets %v", g.Node, g.PodCIDRs)
		}
		for _, b := range g.PodCIDRs {
			if who := holder(f, p.Assignments[:i], g.UID, b); who != "" {
				return fmt.Errorf("%s gets %s, which is %s's", g.Node, b, who)
			}
			if !slices.ContainsFunc(f.Ranges, func(r blocks.Range) bool { return r.Cluster.Overlaps(b) && r.Mask == b.Bits() }) {
				return fmt.Errorf("%s gets %s, which is no block", g.Node, b)
			}
		}
	}
	for _, w := range p.Waiting {
		done[w.UID] = true
	}
	for _, n := range f.Nodes {
		if needs := len(n.PodCIDRs) == 0 && !n.Leaving; needs != done[n.UID] {
			return fmt.Errorf("node %s needs one: %v", n.Name, needs)
		}
	}
	return nil
}

// holder is what, other than the Node itself, has addresses of b.
func holder(f Facts, before []Assignment, uid string, b netip.Prefix) string {
	for _, s := range f.Services {
		if s.Overlaps(b) {
			return "a Service"
		}
	}
	if slices.ContainsFunc(f.Pools["p"], b.Overlaps) {
		return "a pool"
	}
	for _, n := range f.Nodes {
		if slices.ContainsFunc(n.PodCIDRs, b.Overlaps) || slices.ContainsFunc(n.Addresses, b.Contains) {
			return n.Name
		}
	}
	for _, c := range f.Claims {
		if c.UID != uid && c.PodCIDR.Overlaps(b) {
			return c.UID + " by a claim"
		}
	}
	for _, g := range before {
		if slices.ContainsFunc(g.PodCIDRs, b.Overlaps) {
			return g.Node + " in this plan"
		}
	}
	return ""
}

// What fills a range is determined once, and not for each waiting Node: there may be thousands of Nodes and of pools.
func TestAFullRangeIsExplainedOnce(t *testing.T) {
	f := Facts{Ranges: ranges("10.0.0.0/24 24", "10.0.1.0/24 24"), Pools: map[string][]netip.Prefix{}}
	for i := range 500 {
		f.Pools[fmt.Sprint("p", i)] = prefixes("10.0.0.16/28", "10.0.1.16/28", "10.9.0.0/24")
	}
	waiting := func(n int) float64 {
		for len(f.Nodes) < n {
			f.Nodes = append(f.Nodes, node(fmt.Sprint("n", len(f.Nodes)), 1))
		}
		return testing.AllocsPerRun(1, func() {
			if p := mustMake(t, f); len(p.Waiting) != n {
				t.Fatalf("%d wait, want %d", len(p.Waiting), n)
			}
		})
	}
	one, many := waiting(1), waiting(101)
	if each := (many - one) / 100; each > 50 {
		t.Errorf("each Node that waits takes %.0f allocations", each)
	}
}
