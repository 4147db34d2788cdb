// Package pool computes which addresses an IPPool has and whether it is valid. It is the authoritative validation:
// agents and controller, with the Kubernetes API or with a directory of manifests, allocate from what Read returns and
// nothing else. The schema of the CustomResourceDefinition and the admission policy only report some errors earlier.
package pool

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"time"
)

// Pool is a valid IPPool.
type Pool struct {
	// Name is the IPPool's.
	Name string
	// Scope is the isolated network of the addresses. Empty: the pods' network.
	Scope string
	// Family is 4 or 6.
	Family int
	// Created is when the IPPool was created. Zero if that is not recorded: in a directory of manifests.
	Created time.Time
	// Ranges are as written, in that order. They do not overlap.
	Ranges []Range
	// Free is the controller's free map.
	Free FreeMap

	spans []span // allocatable addresses, sorted
}

// FreeMap is which addresses of a pool were free when the controller last looked: a hint.
type FreeMap struct {
	// Spans may be of other addresses than the pool's, too.
	Spans []Span
	// Complete: no other address of the pool was free.
	Complete bool
}

// Equal reports whether both maps are the same.
func (m FreeMap) Equal(o FreeMap) bool {
	return m.Complete == o.Complete && slices.Equal(m.Spans, o.Spans)
}

// Range is one range of a pool and the subnet of the underlay that it lies in.
type Range struct {
	Span
	// Gateway is the underlay's router. With IPv6 it may be link-local.
	Gateway netip.Addr
	// Bits is the length of the subnet's prefix.
	Bits int
	// VLAN is the tag on the wire; 0 is untagged.
	VLAN uint16
}

// subnet is the underlay subnet of the range.
func (r Range) subnet() netip.Prefix { return netip.PrefixFrom(r.First, r.Bits).Masked() }

// Total is how many addresses the pool can allocate. It saturates at math.MaxInt64.
func (p Pool) Total() int64 {
	var n int64
	for _, s := range p.spans {
		n = saturated(n, s.size())
	}
	return n
}

// Contains reports whether the pool can allocate addr.
func (p Pool) Contains(addr netip.Addr) bool {
	_, ok := p.find(addr)
	return ok
}

// RangeOf returns the range of an address that the pool can allocate.
func (p Pool) RangeOf(addr netip.Addr) (Range, bool) {
	i, ok := p.find(addr)
	if !ok {
		return Range{}, false
	}
	return p.Ranges[p.spans[i].of], true
}

// find returns the span that addr is in, else the first one after addr.
func (p Pool) find(addr netip.Addr) (int, bool) {
	return slices.BinarySearchFunc(p.spans, addr, func(s span, a netip.Addr) int {
		switch {
		case s.Last.Less(a):
			return -1
		case a.Less(s.First):
			return 1
		}
		return 0
	})
}

// Check returns why the pool cannot allocate addr, or nil if it can.
func (p Pool) Check(addr netip.Addr) error {
	if p.Contains(addr) {
		return nil
	}
	for _, r := range p.Ranges {
		switch {
		case addr == r.Gateway:
			return fmt.Errorf("%s is the gateway of pool %s", addr, p.Name)
		case !r.Contains(addr):
		case slices.ContainsFunc(r.reserved(), func(s Span) bool { return s.Contains(addr) }):
			return fmt.Errorf("%s is not a pod address in the subnet %s of pool %s", addr, r.subnet(), p.Name)
		default:
			return fmt.Errorf("%s is one of the spec.excludes of pool %s", addr, p.Name)
		}
	}
	return fmt.Errorf("%s is outside of pool %s", addr, p.Name)
}

// At returns the address with number n, counted from 0 to Total()-1.
func (p Pool) At(n int64) netip.Addr {
	for _, s := range p.spans {
		if size := s.size(); n >= size {
			n -= size
			continue
		}
		return plus(s.First, uint64(n))
	}
	return netip.Addr{}
}

// From returns all addresses once, starting at addr, or at the first one after it, and wrapping around. A large pool
// has more of them than can be iterated.
func (p Pool) From(addr netip.Addr) iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		at, inside := p.find(addr)
		if len(p.spans) == 0 {
			return
		}
		for i := range len(p.spans) + 1 {
			s := p.spans[(at+i)%len(p.spans)].Span
			switch {
			case i == 0 && inside:
				s.First = addr
			case i == len(p.spans) && !inside:
				return
			case i == len(p.spans):
				if s.First == addr {
					return
				}
				s.Last = addr.Prev()
			}
			if !s.each(yield) {
				return
			}
		}
	}
}

// InVLAN is the pool restricted to the given VLANs.
func (p Pool) InVLAN(vlans ...uint16) Pool {
	p.spans = slices.DeleteFunc(slices.Clone(p.spans), func(s span) bool {
		return !slices.Contains(vlans, p.Ranges[s.of].VLAN)
	})
	return p
}

// Hinted is the pool restricted to the addresses in Free.
func (p Pool) Hinted() Pool {
	all := p.spans
	p.spans = nil
	for _, s := range all {
		for _, f := range p.Free.Spans {
			if first, both := s.overlap(f); both {
				last := s.Last
				if f.Last.Less(last) {
					last = f.Last
				}
				p.spans = append(p.spans, span{Span{first, last}, s.of})
			}
		}
	}
	slices.SortFunc(p.spans, func(a, b span) int { return a.First.Compare(b.First) })
	return p
}

// Prefixes are the ranges as written, as the fewest prefixes.
func (p Pool) Prefixes() []netip.Prefix {
	var out []netip.Prefix
	for _, r := range p.Ranges {
		out = append(out, r.prefixes()...)
	}
	return out
}

// Allocatable are the addresses that the pool can allocate, as the fewest prefixes.
func (p Pool) Allocatable() []netip.Prefix {
	var out []netip.Prefix
	for _, s := range p.spans {
		out = append(out, s.prefixes()...)
	}
	return out
}

// Without returns the addresses that are not in used, which is sorted: the free map. used may be of all pools.
func (p Pool) Without(used []netip.Addr) []Span {
	var out []Span
	for _, s := range p.spans {
		var taken []Span
		first, _ := slices.BinarySearchFunc(used, s.First, netip.Addr.Compare)
		for _, a := range used[first:] {
			if s.Last.Less(a) {
				break
			}
			taken = append(taken, Span{a, a})
		}
		out = append(out, s.minus(taken)...)
	}
	return out
}

// Block returns the first of n consecutive addresses of which none is in used, which is sorted: in the smallest gap
// that fits, so that large ones stay. All are in one range. False: there is no such block.
func (p Pool) Block(used []netip.Addr, n int64) (first netip.Addr, ok bool) {
	var best Span
	for _, s := range p.Without(used) {
		if s.size() >= n && (!ok || s.size() < best.size()) {
			best, ok = s, true
		}
	}
	return best.First, ok
}
