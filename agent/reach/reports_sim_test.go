package reach

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	pure "github.com/fairlead-cni/fairlead/diagnose/reach"
)

// bothStacks runs a test in single-stack and dual-stack worlds; dual-stack includes single-stack, so -short runs only
// that.
func bothStacks(t *testing.T, test func(t *testing.T, newWorld func(n int) *world)) {
	if !testing.Short() {
		t.Run("single-stack", func(t *testing.T) { test(t, newWorld) })
	}
	t.Run("dual-stack", func(t *testing.T) {
		test(t, func(n int) *world {
			w := newWorld(n)
			w.dual()
			return w
		})
	})
}

// pairOf breaks the path between two nodes, and nothing else.
func (w *world) pairOf(a, b *simulated) func(from, to *simulated, full bool) bool {
	return func(from, to *simulated, _ bool) bool { return !(from == a && to == b || from == b && to == a) }
}

// partners returns two nodes that probe no common node.
func (w *world) partners() (a, b *simulated) {
	for _, a := range w.nodes {
		b := w.byAddr[endsOf(a.peer(a.wanted[len(a.wanted)-1]))[0]]
		if !slices.ContainsFunc(a.wanted, func(n string) bool { return slices.Contains(b.wanted, n) }) {
			return a, b
		}
	}
	return nil, nil
}

// In a cluster of two nodes, neither knows whether the other restarts: there is no third node.
func TestNoThirdNode(t *testing.T) {
	bothStacks(t, func(t *testing.T, newWorld func(n int) *world) {
		w := newWorld(2)
		w.run(time.Minute)
		w.passes = func(_, _ *simulated, _ bool) bool { return false }
		w.run(115 * time.Second)
		w.wantNothingTold(t, "the other of two nodes may restart")
		w.run(15 * time.Second)
		if len(w.reported) == 0 {
			t.Error("no agent reports a node that is silent for two minutes")
		}
	})
}

// A partner has other neighbours than this node: these are probed as long as the partner's state is undecided.
// Otherwise only the next partners, which are beside it on the ring, would know, after up to 45 s.
func TestPartnersNeighboursAreProbed(t *testing.T) {
	bothStacks(t, func(t *testing.T, newWorld func(n int) *world) {
		w := newWorld(40)
		w.run(41 * time.Second) // they are partners for 19 s more
		a, b := w.partners()
		w.passes = w.pairOf(a, b)
		w.run(40 * time.Second)
		if f := a.report.Findings; len(f) == 0 || f[0].Node != b.NodeName || !slices.ContainsFunc(f[0].Seen,
			func(s string) bool { return strings.HasPrefix(s, "the agent of node "+b.NodeName+" runs: node ") }) {
			t.Errorf("nothing passes between %s and %s: after 40 s %+v", a.NodeName, b.NodeName, f)
		}
		w.run(90 * time.Second)
		if most := pure.Neighbours + 2; a.report.Asked > most { // neighbours, a partner, and the silent node
			t.Errorf("in the end %d nodes are probed, want at most %d", a.report.Asked, most)
		}
	})
}

// Several silent nodes are asked about in turn.
func TestSeveralSilentNodes(t *testing.T) {
	w := newWorld(5)
	w.run(time.Minute)
	a := w.nodes[0]
	w.passes = func(from, to *simulated, _ bool) bool { return from.number+to.number > 3 || from != a && to != a }
	w.run(45 * time.Second)
	if f := a.report.Findings; len(f) != 3 {
		t.Errorf("nothing passes to three of four nodes: after 45 s %+v", f)
	}
}

// If one family fails, the other shows that the agent runs, even without a third node.
func TestOtherFamilyShowsAgent(t *testing.T) {
	w := newWorld(2)
	w.dual()
	w.run(time.Minute)
	w.passes = always
	w.loses = func(ipv4 bool) bool { return !ipv4 }
	w.run(45 * time.Second)
	for _, s := range w.nodes {
		if f := s.report.Findings; len(f) != 1 || f[0].Family != "IPv6" || !slices.ContainsFunc(f[0].Seen,
			func(s string) bool { return strings.Contains(s, "this node, by IPv4, hears it") }) {
			t.Errorf("%s has found %+v", s.NodeName, f)
		}
	}
}

// A restarting node has two minutes to start its agent, whichever node is asked: even if packets to one node were lost
// before, so that others heard it later, and if others hear it again some seconds earlier.
func TestNodeRestartsAsSeenByOthers(t *testing.T) {
	bothStacks(t, func(t *testing.T, newWorld func(n int) *world) {
		for _, n := range []int{3, 12} {
			for _, lost := range []time.Duration{0, 3, 6, 9, 12, 15} { // seconds
				w := newWorld(n)
				w.run(time.Minute + 7*lost*tick)
				a, x := w.nodes[0], w.nodes[1]
				w.passes = w.pairOf(a, x)
				w.run(lost * time.Second)
				w.passes = func(from, to *simulated, _ bool) bool { return from != x && to != x }
				x.dead = true
				w.run((100 - lost) * time.Second)
				x.restart()
				w.passes = w.pairOf(a, x)
				w.run(7 * time.Second)
				w.passes = always
				w.run(time.Minute)
				w.wantNothingTold(t, fmt.Sprintf("of %d nodes one restarts, after %d s without a packet to one", n, lost))
			}
		}
	})
}

// An agent that stops announces that to all nodes, and those that receive it no longer report it to others as heard.
func TestAgentLeavesWhileOthersAreAsked(t *testing.T) {
	w := newWorld(4)
	w.run(time.Minute)
	a, x := w.nodes[0], w.nodes[1]
	w.passes = w.pairOf(a, x)
	w.run(4 * time.Second)
	for _, to := range x.queue {
		x.send(to, w.now, true)
	}
	x.hung = true
	w.run(time.Minute)
	w.wantNothingTold(t, "an agent has stopped")
	if o := w.nodes[2].answer(pure.NameHash(x.NodeName), w.now); o != (pure.Other{}) {
		t.Errorf("for a node whose agent has stopped, %+v is reported", o)
	}
}
