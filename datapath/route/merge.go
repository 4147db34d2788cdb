package route

import (
	"net/netip"
	"slices"
)

// merged is a route and those that it replaces.
type merged struct {
	Route
	of []Route // one or more
}

// merge replaces the routes to the virtual next hop with the fewest that cover the same destinations. These may also
// cover d.Own, which has longer prefixes. On every interface change ovs-vswitchd reads the whole table, which blocks it
// for some 13 ms per 1,000 routes.
func (d Desired) merge() []merged {
	type kind struct {
		is4 bool
		src netip.Addr
		mtu int
	}
	var out []merged
	alike := map[kind][]Route{}
	for _, r := range d.Routes {
		if !r.Tunnelled() {
			out = append(out, merged{r, []Route{r}}) // unchanged
			continue
		}
		k := kind{r.Dst.Addr().Is4(), r.Src, r.MTU}
		alike[k] = append(alike[k], r)
	}
	for k, routes := range alike {
		var dsts []netip.Prefix
		for _, own := range d.Own {
			if own.Addr().Is4() == k.is4 {
				dsts = append(dsts, own)
			}
		}
		of := map[netip.Prefix][]Route{}
		for _, r := range routes {
			dsts = append(dsts, r.Dst)
		}
		all := Aggregate(dsts)
		for _, r := range routes {
			p := coverOf(r.Dst, all)
			of[p] = append(of[p], r)
		}
		for p, stands := range of {
			out = append(out, merged{Route{Dst: p, Src: k.src, MTU: k.mtu}, stands})
		}
	}
	return out
}

// coverOf returns the one of sorted, non-overlapping prefixes that contains p.
func coverOf(p netip.Prefix, sorted []netip.Prefix) netip.Prefix {
	i, found := slices.BinarySearchFunc(sorted, p.Masked(), netip.Prefix.Compare)
	if !found {
		i-- // a prefix sorts before all that it contains
	}
	return sorted[i]
}

// unmerged splits merged routes that cover a destination to which others have a route: otherwise that conflict would
// also affect peers that it does not concern.
func unmerged(all []merged, others taken) (out []Route) {
	for _, m := range all {
		if m.Dst != m.of[0].Dst.Masked() && others.within(m.Dst) {
			out = append(out, m.of...)
		} else {
			out = append(out, m.Route)
		}
	}
	return out
}
