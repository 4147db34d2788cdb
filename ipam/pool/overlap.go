package pool

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// Others are the other users of addresses in the cluster.
type Others struct {
	// Pools may include the pool in question.
	Pools        []Pool
	Nodes        []Node
	ServiceCIDRs []netip.Prefix
}

// Node is what a Node has.
type Node struct {
	Name      string
	PodCIDRs  []netip.Prefix
	Addresses []netip.Addr
}

// Relevant leaves out Nodes that share no address with any of the pools: with thousands of Nodes, comparing each pool
// with each of them takes a hundred times as long.
func (o Others) Relevant() Others {
	var spans []Span
	for _, p := range o.Pools {
		for _, s := range p.spans {
			spans = append(spans, s.Span)
		}
	}
	spans = merged(spans)
	var nodes []Node
	for _, n := range o.Nodes {
		cidr := func(c netip.Prefix) bool { return intersects(spans, Span{c.Masked().Addr(), last(c)}) }
		addr := func(a netip.Addr) bool { return intersects(spans, Span{a, a}) }
		if slices.ContainsFunc(n.PodCIDRs, cidr) || slices.ContainsFunc(n.Addresses, addr) {
			nodes = append(nodes, n)
		}
	}
	o.Nodes = nodes
	return o
}

// merged are the addresses of spans, as few spans, sorted.
func merged(spans []Span) (out []Span) {
	slices.SortFunc(spans, func(a, b Span) int { return a.First.Compare(b.First) })
	for _, s := range spans {
		if n := len(out); n == 0 || out[n-1].Last.Less(s.First) {
			out = append(out, s)
		} else if out[n-1].Last.Less(s.Last) {
			out[n-1].Last = s.Last
		}
	}
	return out
}

// intersects reports whether one of spans, which are merged, has an address of s.
func intersects(spans []Span, s Span) bool {
	i, _ := slices.BinarySearchFunc(spans, s.First, func(t Span, first netip.Addr) int { return t.Last.Compare(first) })
	return i < len(spans) && !s.Last.Less(spans[i].First)
}

// Overlap is an address of a pool that something else in the cluster has, too.
type Overlap struct {
	Pool string
	// Address is the first of them.
	Address netip.Addr
	// With names the other user: "IPPool b", "the podCIDR 10.0.1.0/24 of node n".
	With string
	// Yields: the pool must not allocate addresses. Of two pools the younger yields, so that a new mistake does not
	// stop a working pool; of two of the same age the one whose name sorts later.
	Yields bool
}

func (o Overlap) String() string {
	return fmt.Sprintf("pool %s has address %s, and so has %s: shorten spec.ipRanges, or name the common addresses in "+
		"spec.excludes", o.Pool, o.Address, o.With)
}

// Overlaps returns what the pool shares addresses with: other pools first. A pool of an isolated network is compared
// with pools of the same network only.
//
// A controller calls this for each of many pools, with [Others.Relevant] of thousands of nodes.
func (p Pool) Overlaps(o Others) []Overlap {
	found := overlaps{pool: p}
	for _, other := range o.Pools {
		if other.Name != p.Name && other.Scope == p.Scope {
			found.addPool(other)
		}
	}
	if p.Scope != "" {
		return found.list
	}
	inCIDRs := func(n *Node) bool { return slices.ContainsFunc(n.PodCIDRs, p.canAllocateFrom) }
	for _, n := range selectNodes(o.Nodes, inCIDRs) {
		for _, c := range n.PodCIDRs {
			found.addCIDR(c, "the podCIDR %s of node %s", c, n.Name)
		}
	}
	for _, c := range o.ServiceCIDRs {
		found.addCIDR(c, "the Service CIDR %s", c)
	}
	for _, n := range selectNodes(o.Nodes, func(n *Node) bool { return slices.ContainsFunc(n.Addresses, p.Contains) }) {
		for _, a := range n.Addresses {
			if p.Contains(a) {
				found.add(a, true, "node %s", n.Name)
			}
		}
	}
	return found.list
}

// Yields reports whether the pool must not allocate addresses because of one of these.
func Yields(overlaps []Overlap) bool {
	return slices.ContainsFunc(overlaps, func(o Overlap) bool { return o.Yields })
}

// overlaps are those of one pool. One for each of the others suffices.
type overlaps struct {
	pool Pool
	list []Overlap
}

func (l *overlaps) add(first netip.Addr, yields bool, format string, args ...any) {
	with := fmt.Sprintf(format, args...)
	if !slices.ContainsFunc(l.list, func(o Overlap) bool { return o.With == with }) {
		l.list = append(l.list, Overlap{Pool: l.pool.Name, Address: first, With: with, Yields: yields})
	}
}

func (l *overlaps) addCIDR(c netip.Prefix, format string, args ...any) {
	if first, both := l.pool.common(Span{c.Masked().Addr(), last(c)}); both {
		l.add(first, true, format, args...)
	}
}

func (l *overlaps) addPool(other Pool) {
	yields := other.before(l.pool)
	for _, s := range other.spans {
		if first, both := l.pool.common(s.Span); both {
			l.add(first, yields, "IPPool %s", other.Name)
		}
	}
	for _, r := range other.Ranges {
		if l.pool.Contains(r.Gateway) {
			l.add(r.Gateway, yields, "the gateway of IPPool %s", other.Name)
		}
	}
	for _, r := range l.pool.Ranges {
		if other.Contains(r.Gateway) {
			l.add(r.Gateway, yields, "IPPool %s", other.Name)
		}
	}
}

// selectNodes returns the Nodes for which such is true, sorted.
func selectNodes(nodes []Node, such func(*Node) bool) []*Node {
	var out []*Node
	for i := range nodes {
		if such(&nodes[i]) {
			out = append(out, &nodes[i])
		}
	}
	slices.SortFunc(out, func(a, b *Node) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// canAllocateFrom reports whether the pool can allocate an address of c.
func (p Pool) canAllocateFrom(c netip.Prefix) bool {
	first := c.Masked().Addr()
	return slices.ContainsFunc(p.spans, func(s span) bool { return c.Contains(s.First) || s.Contains(first) })
}

// common returns the first address of s that the pool can allocate.
func (p Pool) common(s Span) (netip.Addr, bool) {
	for _, own := range p.spans {
		if first, both := own.overlap(s); both {
			return first, true
		}
	}
	return netip.Addr{}, false
}

// before reports whether p, and not q, remains in use where they overlap.
func (p Pool) before(q Pool) bool {
	return cmp.Or(p.Created.Compare(q.Created), cmp.Compare(p.Name, q.Name)) < 0
}
