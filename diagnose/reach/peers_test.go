package reach

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

func names(n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf("node%d", i))
	}
	return out
}

// At any time a node probes only nodes that probe it, and never itself.
func TestPeersAreMutual(t *testing.T) {
	for _, n := range []int{1, 2, 3, 9, 10, 11, 12, 50, 101} {
		nodes := names(n)
		for epoch := range 5 {
			now := time.Unix(1e9, 0).Add(time.Duration(epoch) * Epoch)
			of := map[string][]string{}
			for _, self := range nodes {
				of[self] = Peers(self, nodes, now)
			}
			for self, peers := range of {
				if want := min(n-1, 2*near+1); len(peers) > want || len(peers) < want-1 {
					t.Fatalf("%d nodes: %s asks %d", n, self, len(peers))
				}
				for _, p := range peers {
					if p == self || !slices.Contains(of[p], self) {
						t.Fatalf("%d nodes: %s asks %s, and that asks %v", n, self, p, of[p])
					}
				}
			}
		}
	}
	if got := Peers("unknown", names(3), time.Now()); got != nil {
		t.Errorf("a node that is not there asks %v", got)
	}
}

// Over time each node probes every other one.
func TestPeersMeetAll(t *testing.T) {
	nodes, met := names(40), map[string]bool{}
	for epoch := range 40 {
		for _, p := range Peers("node0", nodes, time.Unix(1e9, 0).Add(time.Duration(epoch)*Epoch)) {
			met[p] = true
		}
	}
	if len(met) != 39 {
		t.Errorf("node0 met %d of 39", len(met))
	}
}

// A new node changes the neighbours of few nodes.
func TestPeersAreStable(t *testing.T) {
	now, changed := time.Unix(0, 0), 0
	for _, self := range names(200) {
		before, after := Peers(self, names(200), now), Peers(self, names(201), now)
		for _, p := range before[:2*near] {
			if !slices.Contains(after, p) {
				changed++
			}
		}
	}
	if changed > 2*near {
		t.Errorf("one new node changed %d neighbours", changed)
	}
}

// A node's neighbours probe it, and two neighbours have a common peer, which each can query about the other.
func TestBeside(t *testing.T) {
	for _, n := range []int{11, 12, 50} {
		nodes, now := names(n), time.Unix(1e9, 0)
		for _, node := range nodes {
			of := Peers(node, nodes, now)
			for _, p := range NeighboursOf(node, nodes) {
				if !slices.Contains(of[:Neighbours], p) {
					t.Errorf("%d nodes: %s is beside %s, which asks %v", n, p, node, of)
				}
			}
			for _, near := range of[:Neighbours] {
				theirs := Peers(near, nodes, now)
				if !slices.ContainsFunc(of, func(p string) bool { return slices.Contains(theirs, p) }) {
					t.Errorf("%d nodes: %s and %s have no neighbour in common", n, node, near)
				}
			}
		}
	}
	if got := NeighboursOf("unknown", names(3)); got != nil {
		t.Errorf("beside a node that is not there: %v", got)
	}
}

func BenchmarkPeers(b *testing.B) {
	nodes := names(5000)
	for b.Loop() {
		Peers("node7", nodes, time.Unix(1e9, 0))
	}
}
