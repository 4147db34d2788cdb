package pool

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"net/netip"
	"slices"
	"strings"
)

// Span is the addresses from First to Last, which are of one family.
type Span struct{ First, Last netip.Addr }

// span is a part of one range whose addresses can be allocated.
type span struct {
	Span
	of int // index in Pool.Ranges
}

// String is FIRST-LAST, or the address if there is but one.
func (s Span) String() string {
	if s.First == s.Last {
		return s.First.String()
	}
	return s.First.String() + "-" + s.Last.String()
}

// Contains reports whether addr is in the span.
func (s Span) Contains(addr netip.Addr) bool {
	return addr.BitLen() == s.First.BitLen() && s.First.Compare(addr) <= 0 && addr.Compare(s.Last) <= 0
}

// ParseSpan reads an address, a CIDR or FIRST-LAST.
func ParseSpan(text string) (Span, error) {
	if strings.Contains(text, "/") {
		return parseCIDR(text)
	}
	first, last, isRange := strings.Cut(text, "-")
	if !isRange {
		last = first
	}
	s, err := parseEnds(strings.TrimSpace(first), strings.TrimSpace(last))
	if err != nil {
		return Span{}, fmt.Errorf("%q: %w", text, err)
	}
	return s, nil
}

// overlap returns the first address that is in both.
func (s Span) overlap(o Span) (netip.Addr, bool) {
	first := s.First
	if first.Less(o.First) {
		first = o.First
	}
	return first, s.Contains(first) && o.Contains(first)
}

// minus returns the span without those in taken.
func (s Span) minus(taken []Span) []Span {
	var cut []Span
	for _, t := range taken {
		if _, ok := s.overlap(t); ok {
			cut = append(cut, t)
		}
	}
	slices.SortFunc(cut, func(a, b Span) int { return a.First.Compare(b.First) })
	var out []Span
	for _, t := range cut {
		if s.First.Less(t.First) {
			out = append(out, Span{s.First, t.First.Prev()})
		}
		if s.First.Compare(t.Last) <= 0 {
			s.First = t.Last.Next()
		}
		if !s.First.IsValid() || s.Last.Less(s.First) {
			return out
		}
	}
	return append(out, s)
}

// each calls yield with each address until it returns false, and reports whether it never did.
func (s Span) each(yield func(netip.Addr) bool) bool {
	for a := s.First; ; a = a.Next() {
		if !yield(a) {
			return false
		}
		if a == s.Last {
			return true
		}
	}
}

// size saturates at math.MaxInt64.
func (s Span) size() int64 {
	firstHigh, firstLow := halves(s.First)
	lastHigh, lastLow := halves(s.Last)
	low, borrow := bits.Sub64(lastLow, firstLow, 0)
	high, _ := bits.Sub64(lastHigh, firstHigh, borrow)
	if high > 0 || low >= math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(low) + 1
}

// prefixes returns the fewest prefixes that make up the span.
func (s Span) prefixes() []netip.Prefix {
	var out []netip.Prefix
	for {
		p := netip.PrefixFrom(s.First, s.First.BitLen())
		for p.Bits() > 0 {
			wider := netip.PrefixFrom(s.First, p.Bits()-1)
			if wider.Masked().Addr() != s.First || s.Last.Less(last(wider)) {
				break
			}
			p = wider
		}
		out = append(out, p)
		end := last(p)
		if end == s.Last {
			return out
		}
		s.First = end.Next()
	}
}

// last is the last address of a prefix.
func last(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < 8*len(b); i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b) // it has the length of an address
	return a
}

// plus is the address n after a.
func plus(a netip.Addr, n uint64) netip.Addr {
	high, low := halves(a)
	low, carry := bits.Add64(low, n, 0)
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], high+carry)
	binary.BigEndian.PutUint64(b[8:], low)
	if a.Is4() {
		return netip.AddrFrom16(b).Unmap()
	}
	return netip.AddrFrom16(b)
}

func halves(a netip.Addr) (high, low uint64) {
	b := a.As16()
	return binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
}

func saturated(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// Largest returns the n largest of spans, which are sorted, in sorted order.
func Largest(spans []Span, n int) []Span {
	if len(spans) <= n {
		return spans
	}
	order := make([]int, len(spans))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(spans[b].size(), spans[a].size()) })
	order = order[:n]
	slices.Sort(order)
	var out []Span
	for _, i := range order {
		out = append(out, spans[i])
	}
	return out
}
