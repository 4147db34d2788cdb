package podcidr

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/agent/inputs"
)

// This file is a model of kube-controller-manager's range allocator
// (pkg/controller/nodeipam/ipam of Kubernetes 1.36): what it knows right after a
// start. test/podcidr holds it against the real one.

// MaxMaskDiff is how many bits longer than the cluster CIDR a node's mask may be.
// kube-controller-manager refuses more for IPv6, kubeadm for both families.
const MaxMaskDiff = 16

// grid is a cluster CIDR cut into blocks of one length, and which are taken.
type grid struct {
	Range
	taken []span // sorted by first, apart from each other
}

// span is blocks number first to last.
type span struct{ first, last uint64 }

func (s span) meets(t span) bool { return s.first <= t.last && t.first <= s.last }

func newGrid(r Range) (*grid, error) {
	r.Cluster = r.Cluster.Masked()
	switch diff := r.Mask - r.Cluster.Bits(); {
	case !r.Cluster.IsValid():
		return nil, fmt.Errorf("%s is no CIDR", r.Cluster)
	case r.Mask > r.Cluster.Addr().BitLen():
		return nil, fmt.Errorf("a node mask of /%d is longer than the address", r.Mask)
	case diff < 0:
		return nil, fmt.Errorf("a cluster CIDR of %s has no room for one /%d", r.Cluster, r.Mask)
	case diff > MaxMaskDiff && r.Cluster.Addr().Is6():
		return nil, fmt.Errorf("the node mask /%d is %d bits longer than %s; kube-controller-manager takes at most %d",
			r.Mask, diff, r.Cluster, MaxMaskDiff)
	}
	return &grid{Range: r}, nil
}

// blocks is how many podCIDRs the range holds.
func (r Range) blocks() uint64 { return 1 << (r.Mask - r.Cluster.Bits()) }

// index is the number of the block that holds a, which lies in the range.
func (g *grid) index(a netip.Addr) uint64 {
	var n uint64
	for bit, b := g.Cluster.Bits(), a.AsSlice(); bit < g.Mask; bit++ {
		n = n<<1 | uint64(b[bit/8]>>(7-bit%8)&1)
	}
	return n
}

// block is the podCIDR with the number n.
func (g *grid) block(n uint64) netip.Prefix {
	b := g.Cluster.Addr().AsSlice()
	for bit := g.Mask - 1; bit >= g.Cluster.Bits(); bit-- {
		b[bit/8] |= byte(n&1) << (7 - bit%8)
		n >>= 1
	}
	a, _ := netip.AddrFromSlice(b)
	return netip.PrefixFrom(a, g.Mask)
}

// take marks each block that p touches. A p that is as wide as the range, or
// wider, takes all of it; one beside the range is an error.
func (g *grid) take(p netip.Prefix) error {
	if !p.Overlaps(g.Cluster) {
		return fmt.Errorf("%s is outside of the cluster CIDR %s", p, g.Cluster)
	}
	s := span{0, g.blocks() - 1}
	if p.Bits() > g.Cluster.Bits() {
		s.first = g.index(p.Masked().Addr())
		s.last = s.first
		if p.Bits() < g.Mask {
			s.last += 1<<(g.Mask-p.Bits()) - 1
		}
	}
	g.taken = append(g.taken, s)
	return nil
}

// settle brings taken in order after some takes.
func (g *grid) settle() {
	slices.SortFunc(g.taken, func(a, b span) int { return cmp.Compare(a.first, b.first) })
	var out []span
	for _, s := range g.taken {
		if n := len(out); n > 0 && s.first <= out[n-1].last+1 {
			out[n-1].last = max(out[n-1].last, s.last)
			continue
		}
		out = append(out, s)
	}
	g.taken = out
}

// free is how many blocks are left.
func (g *grid) free() uint64 {
	n := g.blocks()
	for _, s := range g.taken {
		n -= s.last - s.first + 1
	}
	return n
}

// next returns the first n free blocks, or as many as there are.
func (g *grid) next(n int) []netip.Prefix {
	var out []netip.Prefix
	at := uint64(0)
	for _, s := range append(slices.Clone(g.taken), span{g.blocks(), 0}) {
		for ; at < s.first && len(out) < n; at++ {
			out = append(out, g.block(at))
		}
		at = s.last + 1
	}
	return out
}

// start is the allocator just after its start: one grid for each range, in which
// the Service CIDRs that it was told and the nodes' podCIDRs are taken. It does
// not start when a node's podCIDR number i does not lie in range number i.
func start(ranges []Range, services []netip.Prefix, nodes []inputs.Node) ([]*grid, error) {
	var grids []*grid
	for _, r := range ranges {
		g, err := newGrid(r)
		if err != nil {
			return nil, err
		}
		for _, s := range services {
			if s.Overlaps(g.Cluster) {
				if err := g.take(s); err != nil {
					return nil, err
				}
			}
		}
		grids = append(grids, g)
	}
	for _, n := range nodes {
		for i, p := range n.PodCIDRs {
			if i >= len(grids) {
				return nil, fmt.Errorf("node %s has %d podCIDRs, and there %s", n.Name, len(n.PodCIDRs),
					count(len(grids), "is 1 cluster CIDR", "are %d cluster CIDRs"))
			}
			if err := grids[i].take(p); err != nil {
				return nil, fmt.Errorf("node %s: %w", n.Name, err)
			}
		}
	}
	for _, g := range grids {
		g.settle()
	}
	return grids, nil
}
