package route

import (
	"net/netip"
	"slices"
)

// merged is a route and those that it stands for.
type merged struct {
	Route
	of []Route // one or more
}

// merge returns, in place of the routes to the virtual next hop, the fewest that lead the same destinations there, and
// d.Own besides, to which longer prefixes lead. At every change of any interface ovs-vswitchd reads the whole table,
// which takes it some 13 ms for 1,000 routes, and does nothing else meanwhile.
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
			out = append(out, merged{r, []Route{r}}) // as it is
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

// coverOf is the one of sorted prefixes, none of which overlap, that holds p.
func coverOf(p netip.Prefix, sorted []netip.Prefix) netip.Prefix {
	i, found := slices.BinarySearchFunc(sorted, p.Masked(), netip.Prefix.Compare)
	if !found {
		i-- // it sorts before all that it holds, and after all before it
	}
	return sorted[i]
}

// unmerged are the routes to make beside those that others have: where another's leads to a part of what a merged one
// covers, it would take peers along that it never was in the way of.
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
