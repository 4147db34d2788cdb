package pool

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// Others is who else has addresses in the cluster.
type Others struct {
	// Pools may have the pool in question among them.
	Pools []Pool
	// PodCIDRs and NodeAddresses are by the Node's name.
	PodCIDRs      map[string][]netip.Prefix
	NodeAddresses map[string][]netip.Addr
	ServiceCIDRs  []netip.Prefix
}

// Overlap is an address that a pool would hand out and that somebody else has too.
type Overlap struct {
	Pool string
	// Address is the first of them.
	Address netip.Addr
	// With names the other: "IPPool b", "the podCIDR 10.0.1.0/24 of node n".
	With string
	// Yields tells that the pool must not hand out anything. Of two pools the
	// younger yields, so that a new mistake does not stop what works; of two of
	// one age the one whose name is later.
	Yields bool
}

func (o Overlap) String() string {
	return fmt.Sprintf("pool %s has address %s, and so has %s: shorten spec.ipRanges, or name the common addresses in "+
		"spec.excludes", o.Pool, o.Address, o.With)
}

// Overlaps returns with whom the pool shares addresses: other pools first. Pools
// of an isolated network are compared with pools of the same network alone.
func (p Pool) Overlaps(o Others) []Overlap {
	var out []Overlap
	// One sentence for each of them is enough.
	add := func(first netip.Addr, yields bool, format string, args ...any) {
		with := fmt.Sprintf(format, args...)
		if !slices.ContainsFunc(out, func(o Overlap) bool { return o.With == with }) {
			out = append(out, Overlap{Pool: p.Name, Address: first, With: with, Yields: yields})
		}
	}
	addSpan := func(s Span, yields bool, format string, args ...any) {
		if first, both := p.common(s); both {
			add(first, yields, format, args...)
		}
	}
	for _, other := range o.Pools {
		if other.Name == p.Name || other.Scope != p.Scope {
			continue
		}
		yields := other.before(p)
		for _, s := range other.spans {
			addSpan(s.Span, yields, "IPPool %s", other.Name)
		}
		for _, r := range other.Ranges {
			addSpan(Span{r.Gateway, r.Gateway}, yields, "the gateway of IPPool %s", other.Name)
		}
		for _, r := range p.Ranges {
			if other.Contains(r.Gateway) {
				add(r.Gateway, yields, "IPPool %s", other.Name)
			}
		}
	}
	if p.Scope != "" {
		return out
	}
	for _, node := range slices.Sorted(maps.Keys(o.PodCIDRs)) {
		for _, c := range o.PodCIDRs[node] {
			addSpan(Span{c.Masked().Addr(), last(c)}, true, "the podCIDR %s of node %s", c, node)
		}
	}
	for _, c := range o.ServiceCIDRs {
		addSpan(Span{c.Masked().Addr(), last(c)}, true, "the Service CIDR %s", c)
	}
	for _, node := range slices.Sorted(maps.Keys(o.NodeAddresses)) {
		for _, a := range o.NodeAddresses[node] {
			addSpan(Span{a, a}, true, "node %s", node)
		}
	}
	return out
}

// common returns the first address of s that the pool would hand out.
func (p Pool) common(s Span) (netip.Addr, bool) {
	for _, own := range p.spans {
		if first, both := own.overlap(s); both {
			return first, true
		}
	}
	return netip.Addr{}, false
}

// before tells whether p goes on where p and q overlap.
func (p Pool) before(q Pool) bool {
	return cmp.Or(p.Created.Compare(q.Created), cmp.Compare(p.Name, q.Name)) < 0
}
