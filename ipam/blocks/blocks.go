// Package blocks divides address ranges into blocks of one length, as a cluster CIDR into podCIDRs, and computes which
// are free. It has no side effects.
package blocks

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// Range is a cluster CIDR and the length, in bits, of the blocks that it is cut into: --cluster-cidr and
// --node-cidr-mask-size of kube-controller-manager.
type Range struct {
	Cluster netip.Prefix
	Mask    int
}

func (r Range) String() string { return fmt.Sprintf("%s cut into /%d", r.Cluster, r.Mask) }

// maxBits bounds how much longer Mask may be than the cluster CIDR, so that blocks can be counted.
const maxBits = 63

// Check returns what is wrong with a range.
func (r Range) Check() error {
	switch diff := r.Mask - r.Cluster.Bits(); {
	case !r.Cluster.IsValid():
		return fmt.Errorf("%s is not a CIDR", r.Cluster)
	case r.Mask > r.Cluster.Addr().BitLen():
		return fmt.Errorf("a node mask of /%d is longer than the address", r.Mask)
	case diff < 0:
		return fmt.Errorf("a cluster CIDR of %s has no room for one /%d", r.Cluster, r.Mask)
	case diff > maxBits:
		return fmt.Errorf("the node mask /%d is %d bits longer than %s; at most %d are supported", r.Mask, diff, r.Cluster,
			maxBits)
	}
	return nil
}

// Blocks is the number of blocks of the range.
func (r Range) Blocks() uint64 { return 1 << (r.Mask - r.Cluster.Bits()) }

// Block is the one with the number n, counted from 0.
func (r Range) Block(n uint64) netip.Prefix {
	b := r.Cluster.Masked().Addr().AsSlice()
	for bit := r.Mask - 1; bit >= r.Cluster.Bits(); bit-- {
		b[bit/8] |= byte(n&1) << (7 - bit%8)
		n >>= 1
	}
	a, _ := netip.AddrFromSlice(b)
	return netip.PrefixFrom(a, r.Mask)
}

// span is blocks number first to last.
type span struct{ first, last uint64 }

// span is the blocks that p overlaps. p overlaps the range; if it is as wide as the range, or wider, it overlaps all of
// it.
func (r Range) span(p netip.Prefix) span {
	if p.Bits() <= r.Cluster.Bits() {
		return span{0, r.Blocks() - 1}
	}
	first := r.index(p.Masked().Addr())
	if p.Bits() >= r.Mask {
		return span{first, first}
	}
	return span{first, first + 1<<(r.Mask-p.Bits()) - 1}
}

// index is the number of the block that holds a, which lies in the range.
func (r Range) index(a netip.Addr) uint64 {
	var n uint64
	for bit, b := r.Cluster.Bits(), a.AsSlice(); bit < r.Mask; bit++ {
		n = n<<1 | uint64(b[bit/8]>>(7-bit%8)&1)
	}
	return n
}

// Grid is a range and which of its blocks are in use.
type Grid struct {
	Range
	taken   []span // where settled: sorted by first, disjoint
	settled bool
}

// New is a grid with all blocks free. See Range.Check for the error.
func New(r Range) (*Grid, error) {
	r.Cluster = r.Cluster.Masked()
	if err := r.Check(); err != nil {
		return nil, err
	}
	return &Grid{Range: r, settled: true}, nil
}

// Clone is an independent copy of the grid.
func (g *Grid) Clone() *Grid { return &Grid{g.Range, slices.Clone(g.taken), g.settled} }

// MarkUsed marks each block that p overlaps as in use. A p outside of the range is an error.
func (g *Grid) MarkUsed(p netip.Prefix) error {
	if !p.Overlaps(g.Cluster) {
		return fmt.Errorf("%s is outside of the cluster CIDR %s", p, g.Cluster)
	}
	g.taken = append(g.taken, g.span(p))
	g.settled = false
	return nil
}

// mergeUsed sorts and merges taken.
func (g *Grid) mergeUsed() {
	if g.settled {
		return
	}
	slices.SortFunc(g.taken, func(a, b span) int { return cmp.Compare(a.first, b.first) })
	var out []span
	for _, s := range g.taken {
		if n := len(out); n > 0 && s.first <= out[n-1].last+1 {
			out[n-1].last = max(out[n-1].last, s.last)
			continue
		}
		out = append(out, s)
	}
	g.taken, g.settled = out, true
}

// Free is the number of free blocks.
func (g *Grid) Free() uint64 {
	g.mergeUsed()
	n := g.Blocks()
	for _, s := range g.taken {
		n -= s.last - s.first + 1
	}
	return n
}

// Next returns the first n free blocks, or fewer if there are fewer.
func (g *Grid) Next(n int) []netip.Prefix { return g.NextFrom(0, n) }

// NextFrom returns the first n free blocks from number start on, wrapping around, or fewer if there are fewer.
func (g *Grid) NextFrom(start uint64, n int) []netip.Prefix {
	g.mergeUsed()
	out := g.between(nil, start, g.Blocks(), n)
	return g.between(out, 0, min(start, g.Blocks()), n)
}

// between appends free blocks from number at to before end, until there are n.
func (g *Grid) between(out []netip.Prefix, at, end uint64, n int) []netip.Prefix {
	for _, s := range append(slices.Clone(g.taken), span{end, end}) {
		for ; at < min(s.first, end) && len(out) < n; at++ {
			out = append(out, g.Block(at))
		}
		at = max(at, s.last+1)
	}
	return out
}

// After is the number of the block after the last that p overlaps, which overlaps the range; 0 after the range's end.
func (g *Grid) After(p netip.Prefix) uint64 { return (g.span(p).last + 1) % g.Blocks() }
