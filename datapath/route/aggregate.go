package route

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/api"
)

// Aggregate returns the smallest set of prefixes that covers exactly the
// addresses that all of prefixes cover, sorted. Host bits do not count.
func Aggregate(prefixes []netip.Prefix) []netip.Prefix {
	sorted := make([]netip.Prefix, 0, len(prefixes))
	for _, p := range prefixes {
		sorted = append(sorted, p.Masked())
	}
	slices.SortFunc(sorted, comparePrefix)
	var out []netip.Prefix
	for _, p := range sorted {
		// A prefix sorts behind all that hold it, so only the last can.
		if n := len(out); n > 0 && out[n-1].Overlaps(p) {
			continue
		}
		out = append(out, p)
		// Two halves are one; that one may be half of a greater.
		for n := len(out); n > 1 && siblings(out[n-2], out[n-1]); n = len(out) {
			out = append(out[:n-2], parent(out[n-2]))
		}
	}
	return out
}

// parent is the prefix one bit shorter that holds p, which has at least one.
func parent(p netip.Prefix) netip.Prefix { return netip.PrefixFrom(p.Addr(), p.Bits()-1).Masked() }

// siblings reports whether a and b are the two halves of one prefix.
func siblings(a, b netip.Prefix) bool {
	return a != b && a.Bits() == b.Bits() && a.Bits() > 0 && parent(a) == parent(b)
}

func comparePrefix(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

// merged has, in place of the routes to the virtual next hop, the fewest that lead the same destinations there, and
// d.Own besides, to which longer prefixes lead. At every change of any interface ovs-vswitchd reads the whole table,
// which takes it some 13 ms for 1,000 routes, and does nothing else meanwhile.
func (d Desired) merged() []Route {
	type kind struct {
		is4 bool
		src netip.Addr
		mtu int
	}
	var out []Route
	alike := map[kind][]netip.Prefix{}
	for _, r := range d.Routes {
		if r.Via.IsValid() || r.MAC != (api.MAC{}) {
			out = append(out, r)
			continue
		}
		k := kind{r.Dst.Addr().Is4(), r.Src, r.MTU}
		alike[k] = append(alike[k], r.Dst)
	}
	for k, dsts := range alike {
		for _, own := range d.Own {
			if own.Addr().Is4() == k.is4 {
				dsts = append(dsts, own)
			}
		}
		for _, p := range Aggregate(dsts) {
			if !slices.ContainsFunc(d.Own, func(own netip.Prefix) bool { return own.Overlaps(p) && own.Bits() <= p.Bits() }) {
				out = append(out, Route{Dst: p, Src: k.src, MTU: k.mtu})
			}
		}
	}
	return out
}
