package reach

import (
	"cmp"
	"slices"
	"time"
)

// near is how many neighbours a node has on each side of the ring. Two neighbours have other neighbours in common.
const near = 4

// Neighbours is how many neighbours a node has at most on the ring: the first of its Peers.
const Neighbours = 2 * near

// Epoch is how long a partner stays one.
const Epoch = 20 * time.Second

// Peers are the nodes to which self sends: all others if these are few, else its neighbours on a ring of hashes and one
// partner, another in each epoch: within as many epochs as there are nodes, every other node is the partner once. With
// the same nodes and clock, self is among the peers of each of them. nodes includes self, in any order.
func Peers(self string, nodes []string, now time.Time) []string {
	names := ring(nodes)
	n, here := len(names), slices.Index(names, self)
	if here < 0 {
		return nil
	}
	var out []string
	add := func(i int) {
		if name := names[(i%n+n)%n]; name != self && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	if n <= 2*near+2 {
		for i := range n {
			add(i)
		}
		return out
	}
	for i := 1; i <= near; i++ {
		add(here - i)
		add(here + i)
	}
	add(int(now.Unix()/int64(Epoch/time.Second)%int64(n)) - here)
	return out
}

// NeighboursOf are the two nodes next to another on the ring, which send to it and hear it.
func NeighboursOf(node string, nodes []string) []string {
	names := ring(nodes)
	n, here := len(names), slices.Index(names, node)
	if here < 0 {
		return nil
	}
	return []string{names[(here+n-1)%n], names[(here+1)%n]}
}

// ring are the names in the order of their hashes.
func ring(nodes []string) []string {
	type place struct {
		hash uint64
		name string
	}
	places := make([]place, 0, len(nodes))
	for _, n := range nodes {
		places = append(places, place{NameHash(n), n})
	}
	slices.SortFunc(places, func(a, b place) int {
		return cmp.Or(cmp.Compare(a.hash, b.hash), cmp.Compare(a.name, b.name))
	})
	names := make([]string, 0, len(nodes))
	for _, p := range places {
		names = append(names, p.name)
	}
	return names
}
