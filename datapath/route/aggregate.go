package route

import (
	"net/netip"
	"slices"
)

// Aggregate returns the smallest set of prefixes that covers exactly the addresses that prefixes cover, sorted. Host
// bits are ignored.
func Aggregate(prefixes []netip.Prefix) []netip.Prefix {
	sorted := make([]netip.Prefix, 0, len(prefixes))
	for _, p := range prefixes {
		sorted = append(sorted, p.Masked())
	}
	slices.SortFunc(sorted, netip.Prefix.Compare)
	var out []netip.Prefix
	for _, p := range sorted {
		// A prefix sorts after all that contain it, so only the last can contain it.
		if n := len(out); n > 0 && out[n-1].Overlaps(p) {
			continue
		}
		out = append(out, p)
		// Merge two halves; the result may be half of a larger prefix.
		for n := len(out); n > 1 && siblings(out[n-2], out[n-1]); n = len(out) {
			out = append(out[:n-2], parent(out[n-2]))
		}
	}
	return out
}

// parent returns the prefix one bit shorter that contains p, which has at least one bit.
func parent(p netip.Prefix) netip.Prefix { return netip.PrefixFrom(p.Addr(), p.Bits()-1).Masked() }

// siblings reports whether a and b are the two halves of one prefix.
func siblings(a, b netip.Prefix) bool {
	return a != b && a.Bits() == b.Bits() && a.Bits() > 0 && parent(a) == parent(b)
}
