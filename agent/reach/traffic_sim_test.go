package reach

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/agent/desired"
	pure "github.com/fairlead-cni/fairlead/diagnose/reach"
)

// unanswered makes a node's flows show that packets to others get no answer.
func (w *world) unanswered(s *simulated, by ...*simulated) {
	board := *s.Board.Load()
	board.Unanswered = nil
	for _, peer := range by {
		i := slices.IndexFunc(board.Peers, func(p desired.Peer) bool { return p.Name == peer.NodeName })
		for _, c := range board.Peers[i].PodCIDRs {
			board.Unanswered = append(board.Unanswered, c.Prefix)
		}
	}
	slices.SortFunc(board.Unanswered, netip.Prefix.Compare)
	s.Board.Publish(&board)
}

// In a large cluster, two nodes that do not probe each other start to do so once packets between them get no answer.
// Flows are listed every 15 s, and 5 s must have passed, so these are the longest times.
func TestTrafficMakesSuspect(t *testing.T) {
	const listed = 20 * time.Second
	for name, limit := range map[string]time.Duration{"one direction": 42 * time.Second, "a pair, dropped between": 56 * time.Second} {
		for _, dual := range []bool{false, true} {
			w := newWorld(60)
			if dual {
				w.dual()
			}
			w.run(2 * time.Minute)
			broken := map[[2]int]bool{}
			b := breakages()[slices.IndexFunc(breakages(), func(b breakage) bool { return b.name == name })]
			chosen := w.chosen(b, false, 4)
			for _, c := range chosen {
				broken[c] = true
			}
			b.breaks(w, broken)
			w.run(listed)
			for _, c := range chosen { // the client is the node that gets no answers
				w.unanswered(w.nodes[c[1]], w.nodes[c[0]])
			}
			var after []time.Duration
			for _, d := range w.toldAfter(chosen, time.Minute) {
				after = append(after, d+listed)
			}
			t.Logf("%s, dual-stack %t: reported after %v", name, dual, after)
			if slices.Max(after) > limit {
				t.Errorf("%s, dual-stack %t: reported after %v, want %s", name, dual, after, limit)
			}
		}
	}
}

// Nodes that are probed anyway do not use up the turns of suspected ones.
func TestAskedAreNotSuspect(t *testing.T) {
	w := newWorld(60)
	w.run(time.Minute)
	s := w.nodes[0]
	var other *simulated
	var by []*simulated
	for _, peer := range w.nodes[1:] {
		switch {
		case slices.Contains(s.wanted[:pure.Neighbours], peer.NodeName):
			by = append(by, peer)
		case other == nil && !slices.Contains(s.wanted, peer.NodeName):
			other, by = peer, append(by, peer)
		}
	}
	w.unanswered(s, by...)
	for range 20 {
		w.run(time.Second)
		if _, asked := s.peers[path{other.NodeName, other.addrs[0]}]; !asked {
			t.Fatalf("%s is not probed: %v", other.NodeName, s.queue)
		}
	}
}

// A node that sends to nodes that have nothing to send probes a few of them, in turn, and reports nothing.
func TestUnansweredIsNoFault(t *testing.T) {
	w := newWorld(60)
	w.run(time.Minute)
	s, asked := w.nodes[0], map[string]bool{}
	w.unanswered(s, w.nodes[20:40]...)
	for range 150 {
		w.run(time.Second)
		for _, p := range s.queue {
			asked[p.node] = true
		}
		if len(s.queue) > 13+2*maxSuspected {
			t.Fatalf("%d nodes are probed", len(s.queue))
		}
	}
	for _, peer := range w.nodes[20:40] {
		if !asked[peer.NodeName] {
			t.Errorf("%s was not probed", peer.NodeName)
		}
	}
	w.unanswered(s)
	w.run(time.Minute)
	if len(s.queue) > 13 {
		t.Errorf("%d nodes are probed when all answer", len(s.queue))
	}
	w.wantNothingTold(t, "pods that send to nodes which have nothing to say")
}
