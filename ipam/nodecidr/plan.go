package nodecidr

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/internal/netaddr"
	"github.com/fairlead-cni/fairlead/ipam/blocks"
)

// Node is what matters here about a Node.
type Node struct {
	Name, UID string
	// PodCIDRs are in the Node's order. Invalid ones are left out.
	PodCIDRs  []netip.Prefix
	Addresses []netip.Addr
	Created   time.Time
	// Leaving: it is being deleted.
	Leaving bool
}

// Claim is a block that a Node, identified by its UID, has or will have.
type Claim struct {
	PodCIDR   netip.Prefix
	Node, UID string
	Created   time.Time
}

// Facts are the inputs of Make.
type Facts struct {
	// Ranges are the ranges that podCIDRs are cut from. Of each family the first range with a free block is used. A Node's
	// podCIDRs are in the order of their families' first ranges.
	Ranges []blocks.Range
	// Services are Service CIDRs: no block touches one.
	Services []netip.Prefix
	// Pools are addresses that bridged pods have, or may get, by IPPool: no block touches one.
	Pools  map[string][]netip.Prefix
	Nodes  []Node
	Claims []Claim
	// Last are the blocks that were assigned last, at most one of each range. The search continues after them, so that
	// a released block rests as long as possible. Without one the newest claim counts.
	Last []netip.Prefix
}

// Assignment is what a Node is to get: one block of each family. Those in Claimed are claimed already.
type Assignment struct {
	Node, UID string
	PodCIDRs  []netip.Prefix
	Claimed   []netip.Prefix
}

// Plan is what to do, and what to report.
type Plan struct {
	// Assignments are in the order of the Nodes' creation.
	Assignments []Assignment
	// Release are stale claims: their Node is gone, or has other podCIDRs. Until they are released, which waits for the
	// pods of a Node that is gone, their blocks are in use.
	Release []Claim
	// Waiting are the Nodes for which no block is left.
	Waiting []Waiting
	// Usage has one entry for each range.
	Usage []Usage
	// Faults are what is wrong with podCIDRs that Nodes have.
	Faults []Fault
}

// Waiting is a Node that gets no podCIDR, and why.
type Waiting struct {
	Node, UID, Why string
	// Cause stays the same as long as the reasons do, whatever the numbers in Why.
	Cause string
}

// Usage is how full a range is, in blocks, with the assignments of the plan.
type Usage struct {
	Range       blocks.Range
	Total, Used uint64
}

// Fault is something wrong with a Node's podCIDRs. Fairlead does not change them.
type Fault struct {
	Kind FaultKind
	// Node, and Other where two are in conflict.
	Node, Other string
	Text        string
}

// FaultKind is the kind of a Fault.
type FaultKind string

// The kinds. Shared: two Nodes' podCIDRs overlap. Outside: a podCIDR is in no range. Incomplete: the Node has no
// podCIDR of some family. Service: a podCIDR overlaps a Service CIDR.
const (
	Shared     FaultKind = "Shared"
	Outside    FaultKind = "Outside"
	Incomplete FaultKind = "Incomplete"
	Service    FaultKind = "Service"
)

// Kinds are all kinds of faults.
func Kinds() []FaultKind { return []FaultKind{Shared, Outside, Incomplete, Service} }

// Make computes the plan. An error is about Ranges.
func Make(f Facts) (Plan, error) {
	m := planner{Facts: f, byUID: map[string]*Node{}, claims: map[string][]Claim{},
		fulls: map[int]full{}}
	for _, r := range f.Ranges {
		g, err := blocks.New(r)
		if err != nil {
			return Plan{}, fmt.Errorf("cluster CIDR %s: %w", r.Cluster, err)
		}
		m.grids = append(m.grids, g)
	}
	if err := checkDisjoint(f.Ranges); err != nil {
		return Plan{}, err
	}
	m.occupy()
	m.claimed()
	m.assignAll()
	for _, g := range m.grids {
		m.plan.Usage = append(m.plan.Usage, Usage{g.Range, g.Blocks(), g.Blocks() - g.Free()})
	}
	m.plan.Faults = faults(f)
	return m.plan, nil
}

// checkDisjoint returns an error if two ranges overlap.
func checkDisjoint(ranges []blocks.Range) error {
	for i, r := range ranges {
		for _, s := range ranges[:i] {
			if r.Cluster.Overlaps(s.Cluster) {
				return fmt.Errorf("cluster CIDRs %s and %s overlap", s.Cluster, r.Cluster)
			}
		}
	}
	return nil
}

type planner struct {
	Facts
	grids  []*blocks.Grid
	byUID  map[string]*Node
	claims map[string][]Claim // of each UID, those that count
	fulls  map[int]full       // why no block of a family is left
	plan   Plan
}

// markUsed marks p as in use in the ranges that contain it.
func (m *planner) markUsed(p netip.Prefix) {
	for _, g := range m.grids {
		if p.Overlaps(g.Cluster) {
			_ = g.MarkUsed(p) // it fails only for prefixes outside of the range
		}
	}
}

// occupy marks what is in use: Services, addresses of pools, podCIDRs and addresses of Nodes.
func (m *planner) occupy() {
	for _, s := range m.Services {
		m.markUsed(s)
	}
	for _, prefixes := range m.Pools {
		for _, p := range prefixes {
			m.markUsed(p)
		}
	}
	for i := range m.Nodes {
		n := &m.Nodes[i]
		m.byUID[n.UID] = n
		for _, p := range n.PodCIDRs {
			m.markUsed(p)
		}
		for _, a := range n.Addresses {
			m.markUsed(netip.PrefixFrom(a, a.BitLen()))
		}
	}
}

// claimed sorts claims: those that Nodes have, those still to be written, and stale ones. All of them are in use until
// they are released.
func (m *planner) claimed() {
	for _, c := range m.Claims {
		n := m.byUID[c.UID]
		switch {
		case n == nil, len(n.PodCIDRs) > 0 && !slices.Contains(n.PodCIDRs, c.PodCIDR):
			m.plan.Release = append(m.plan.Release, c)
		case len(n.PodCIDRs) == 0 && !m.usable(c.PodCIDR):
			m.plan.Release = append(m.plan.Release, c)
		case len(n.PodCIDRs) == 0:
			m.claims[c.UID] = append(m.claims[c.UID], c)
		}
	}
	for _, c := range m.Claims {
		m.markUsed(c.PodCIDR)
	}
}

// usable reports whether a claimed block is in a range and not in use otherwise by now.
func (m *planner) usable(p netip.Prefix) bool {
	for _, g := range m.grids {
		if p.Overlaps(g.Cluster) && p.Bits() == g.Mask {
			now := g.Clone()
			return now.MarkUsed(p) == nil && now.Free() < g.Free()
		}
	}
	return false
}

// families are those of the ranges, in their order: 4 and 6.
func families(ranges []blocks.Range) (out []int) {
	for _, r := range ranges {
		if f := netaddr.Family(r.Cluster.Addr()); !slices.Contains(out, f) {
			out = append(out, f)
		}
	}
	return out
}

// assignAll finds blocks for all Nodes without podCIDRs.
func (m *planner) assignAll() {
	var needy []*Node
	for i := range m.Nodes {
		if n := &m.Nodes[i]; len(n.PodCIDRs) == 0 && !n.Leaving {
			needy = append(needy, n)
		}
	}
	slices.SortFunc(needy, func(a, b *Node) int {
		return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.Name, b.Name))
	})
	supply := m.supply(len(needy))
	for _, n := range needy {
		m.assignTo(n, supply)
	}
}

// supply are the next n free blocks of each family.
func (m *planner) supply(n int) map[int][]netip.Prefix {
	out := map[int][]netip.Prefix{}
	for _, g := range m.grids {
		f := netaddr.Family(g.Cluster.Addr())
		out[f] = append(out[f], g.NextFrom(m.startIn(g), n)...)
	}
	return out
}

// startIn is where the search for a free block starts.
func (m *planner) startIn(g *blocks.Grid) uint64 {
	for _, p := range m.Last {
		if p.Overlaps(g.Cluster) {
			return g.After(p)
		}
	}
	var newest Claim
	for _, c := range m.Claims {
		if c.PodCIDR.Overlaps(g.Cluster) && c.Created.After(newest.Created) {
			newest = c
		}
	}
	if newest.PodCIDR.IsValid() {
		return g.After(newest.PodCIDR)
	}
	return 0
}

// assignTo assigns the blocks that a Node has claimed, else the next block of each family, or nothing at all: podCIDRs,
// once written to a Node, cannot be completed.
func (m *planner) assignTo(n *Node, supply map[int][]netip.Prefix) {
	assignment := Assignment{Node: n.Name, UID: n.UID}
	var missing []int
	for _, f := range families(m.Ranges) {
		switch had := m.claimOf(n.UID, f); {
		case had.IsValid():
			assignment.PodCIDRs, assignment.Claimed = append(assignment.PodCIDRs, had), append(assignment.Claimed, had)
		case len(supply[f]) > 0:
			assignment.PodCIDRs = append(assignment.PodCIDRs, supply[f][0])
		default:
			missing = append(missing, f)
		}
	}
	if len(missing) > 0 {
		m.wait(n, missing)
		return
	}
	for _, p := range assignment.PodCIDRs {
		if f := netaddr.Family(p.Addr()); len(supply[f]) > 0 && supply[f][0] == p {
			supply[f] = supply[f][1:]
			m.markUsed(p)
		}
	}
	if len(assignment.PodCIDRs) > 0 {
		m.plan.Assignments = append(m.plan.Assignments, assignment)
	}
}

// claimOf is the block of a family that a Node has claimed: the first, if there are several.
func (m *planner) claimOf(uid string, f int) netip.Prefix {
	var first netip.Prefix
	for _, c := range m.claims[uid] {
		if netaddr.Family(c.PodCIDR.Addr()) == f && (!first.IsValid() || c.PodCIDR.Addr().Less(first.Addr())) {
			first = c.PodCIDR
		}
	}
	return first
}
