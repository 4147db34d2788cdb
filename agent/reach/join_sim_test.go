package reach

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/agent/desired"
	pure "github.com/fairlead-cni/fairlead/diagnose/reach"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

// side is the data that fairleadctl would get from a node about another.
func (s *simulated) side(peer *simulated) pure.Side {
	side := pure.Side{Node: s.NodeName}
	if s.dead || s.hung {
		side.NotQueried, side.Down = "nothing listens there", true
		return side
	}
	for _, p := range s.report.Paths {
		if p.Node == peer.NodeName {
			side.Paths = append(side.Paths, p)
		}
	}
	return side
}

// directions is the joint result of both ends of a pair of nodes: "state cause node" from a to b, and from b to a.
func (w *world) directions(a, b *simulated) (out []string, directions []pure.Direction) {
	directions = pure.Join(a.side(b), b.side(a))
	for _, way := range directions {
		out = append(out, fmt.Sprintf("%s %s %s", way.Is, way.Cause, way.At))
	}
	return out, directions
}

// Both ends together identify each fault of the path between them: its direction, cause and node. Each is tried from
// both ends; a wrong cause is worse than none.
func TestBothEndsKnowTheFault(t *testing.T) {
	only := func(x, y int, full bool) func(from, to *simulated, isFull bool) bool {
		return func(from, to *simulated, isFull bool) bool {
			return from.number != x || to.number != y || full && !isFull
		}
	}
	both := func(full bool) func(from, to *simulated, isFull bool) bool {
		return func(from, to *simulated, isFull bool) bool {
			return from.number+to.number != 1 || full && !isFull
		}
	}
	of := func(node int) func(from, to *simulated, isFull bool) bool {
		return func(from, to *simulated, _ bool) bool { return from.number != node && to.number != node }
	}
	at := func(p place) func(from, to *simulated) place {
		return func(_, _ *simulated) place { return p }
	}
	to1 := func(_, to *simulated, _ bool) bool { return to.number != 1 }
	const works = "works  "
	for _, c := range []struct {
		name          string
		passes, pings func(from, to *simulated, full bool) bool
		drops         func(at, peer *simulated) (in, out string)
		place         func(from, to *simulated) place
		dead, hung    bool // node01's agent
		there, back   string
	}{
		{name: "all is well", there: works, back: works},
		{name: "dropped on the way there", passes: only(0, 1, false), there: "fails between ", back: works},
		{name: "dropped on the way there, and so is ping", passes: only(0, 1, false), pings: only(0, 1, false),
			there: "fails between ", back: works},
		{name: "dropped in both directions", passes: both(false), there: "fails between ", back: "fails between "},
		{name: "dropped by node00", passes: only(0, 1, false), place: at(atSender), there: "fails dropped node00", back: works},
		{name: "not sent by node00, nor is a ping answered", passes: only(0, 1, false), pings: only(0, 1, false), place: at(atSender),
			there: "fails not-found ", back: works},
		{name: "dropped by node01", passes: only(0, 1, false), place: at(atReceiver), there: "fails dropped node01", back: works},
		{name: "dropped by the receivers", passes: both(false), place: at(atReceiver), there: "fails dropped node01",
			back: "fails dropped node00"},
		{name: "translated", passes: only(0, 1, false), place: at(translated), there: "fails source ", back: works},
		{name: "an address that node01 has not", passes: to1, pings: to1, place: at(unheld), there: "fails address node01", back: works},
		{name: "an address that is translated, and dropped from node00 alone", passes: only(0, 1, false), place: at(unheld),
			there: "fails between ", back: works},
		{name: "full-size packets dropped by node01", passes: only(0, 1, true), place: at(atReceiver),
			there: "narrow dropped node01", back: works},
		{name: "full-size packets dropped by node00", passes: only(0, 1, true), place: at(atSender),
			there: "narrow dropped node00", back: works},
		{name: "the underlay between", passes: both(false), pings: both(false), there: "fails underlay ", back: "fails underlay "},
		{name: "node01 drops what arrives", passes: only(0, 1, false), drops: func(at, peer *simulated) (string, string) {
			return map[bool]string{true: "rule 5"}[at.number == 1 && peer.number == 0], ""
		}, there: "fails firewall node01", back: works},
		{name: "node00 drops what leaves", passes: only(0, 1, false), drops: func(at, peer *simulated) (string, string) {
			return "", map[bool]string{true: "rule 5"}[at.number == 0 && peer.number == 1]
		}, there: "fails firewall node00", back: works},
		{name: "node01 drops both", passes: both(false), drops: func(at, peer *simulated) (string, string) {
			rule := map[bool]string{true: "rule 5"}[at.number == 1 && peer.number == 0]
			return rule, rule
		}, there: "fails firewall node01", back: "fails firewall node01"},
		{name: "node01 drops what arrives, something else the rest", passes: both(false),
			drops: func(at, peer *simulated) (string, string) {
				return map[bool]string{true: "rule 5"}[at.number == 1 && peer.number == 0], ""
			}, there: "fails firewall node01", back: "fails between "},
		{name: "node01 is cut off", passes: of(1), pings: of(1), there: "fails cut-off node01", back: "fails cut-off node01"},
		// Packets that leave node01 are known not to arrive.
		{name: "node01's tunnel is blocked", passes: of(1), there: "fails blocked node01", back: "fails between "},
		{name: "an MTU there", passes: only(0, 1, true), pings: only(0, 1, true), there: "narrow mtu ", back: works},
		{name: "an MTU in both directions", passes: both(true), pings: both(true), there: "narrow mtu ", back: "narrow mtu "},
		{name: "full-size packets, and ping passes", passes: both(true), there: "narrow between ", back: "narrow between "},
		{name: "a dead agent", dead: true, there: "works agent-away node01", back: "works agent-away node01"},
		{name: "a dead agent behind a path that fails", dead: true, passes: both(false), there: "unknown agent-away node01",
			back: "unknown agent-away node01"},
		{name: "an agent that hangs", hung: true, there: "works agent-away node01", back: "works agent-away node01"},
		{name: "a dead agent, and a firewall here", dead: true, passes: both(false),
			drops: func(at, peer *simulated) (string, string) {
				return map[bool]string{true: "rule 5"}[at.number == 0 && peer.number == 1], ""
			}, there: "unknown agent-away node01", back: "fails firewall node00"},
	} {
		w := newWorld(5)
		w.run(2 * time.Minute)
		if c.passes != nil {
			w.passes = c.passes
		}
		if c.pings != nil {
			w.pings = c.pings
		}
		w.drops, w.place, w.nodes[1].dead, w.nodes[1].hung = c.drops, c.place, c.dead, c.hung
		w.run(3 * time.Minute)
		got, directions := w.directions(w.nodes[0], w.nodes[1])
		if !slices.Equal(got, []string{c.there, c.back}) {
			t.Errorf("%s: %q, want %q, %q\n%+v", c.name, got, c.there, c.back, directions)
		}
		reversed, _ := w.directions(w.nodes[1], w.nodes[0])
		if !slices.Equal(reversed, []string{c.back, c.there}) {
			t.Errorf("%s, asked the other way round: %q", c.name, reversed)
		}
		for _, way := range directions {
			if way.Bad() && (len(way.Seen) == 0 || way.Since.IsZero()) || way.Text == "" {
				t.Errorf("%s: %+v", c.name, way)
			}
		}
		others, _ := w.directions(w.nodes[2], w.nodes[3])
		if !slices.Equal(others, []string{works, works}) {
			t.Errorf("%s: of others: %q", c.name, others)
		}
	}
}

// While a fault begins and ends, and agents restart, no working direction is reported as failing.
func TestBothEndsAccuseNoWayThatWorks(t *testing.T) {
	w := newWorld(3)
	a, b := w.nodes[0], w.nodes[1]
	watch := func(what string, d time.Duration, wrong func(i int, way pure.Direction) bool) {
		t.Helper()
		for range int(d / time.Second) {
			w.run(time.Second)
			if _, directions := w.directions(a, b); len(directions) == 2 {
				for i, way := range directions {
					if wrong(i, way) {
						t.Fatalf("%s: %+v", what, way)
					}
				}
			}
		}
	}
	no := func(_ int, way pure.Direction) bool { return way.Bad() }
	back := func(i int, way pure.Direction) bool { return i == 1 && way.Bad() }
	watch("at the start", time.Minute, no)
	b.restart()
	watch("an agent restarts", time.Minute, no)
	b.dead = true
	watch("an agent is dead", time.Minute, no)
	b.dead = false
	b.restart()
	watch("it is back", time.Minute, no)
	w.passes = func(from, to *simulated, _ bool) bool { return from != a || to != b }
	watch("from a to b nothing arrives", time.Minute, back)
	a.restart()
	watch("the other's agent restarts", time.Minute, back)
	w.passes = always
	watch("it passes again", time.Minute, back)
}

// Nodes that do not probe each other do so on request, from either side, and both directions are known shortly after.
func TestRequest(t *testing.T) {
	w := newWorld(60)
	w.run(61 * time.Second)
	a := w.nodes[0]
	i := slices.IndexFunc(w.nodes[1:], func(s *simulated) bool {
		return !slices.ContainsFunc(a.queue, func(p path) bool { return p.node == s.NodeName })
	})
	b := w.nodes[1+i]
	if got, _ := w.directions(a, b); !slices.Equal(got, []string{"unknown not-probed ", "unknown not-probed "}) {
		t.Fatalf("before: %q", got)
	}
	if err := a.Request("unknown", w.now); err == nil {
		t.Error("an unknown node is probed")
	}
	small := w.nodes[2+i]
	a.publish(func(_ map[string]inputs.Node, peers []desired.Peer) []desired.Peer {
		for i := range peers {
			if peers[i].Name == small.NodeName {
				peers[i].PodCIDRs = []desired.PeerCIDR{{Prefix: netip.MustParsePrefix("10.77.99.0/29"), Path: desired.PathTunnel}}
			}
		}
		return peers
	})
	if err := a.Request(small.NodeName, w.now); err == nil || !strings.Contains(err.Error(), "16 addresses") {
		t.Errorf("a node whose podCIDR is too small: %v", err)
	}
	w.passes = func(from, to *simulated, _ bool) bool { return from != a || to != b }
	for _, s := range [][2]*simulated{{a, b}, {b, a}} {
		if err := s[0].Request(s[1].NodeName, w.now); err != nil {
			t.Fatal(err)
		}
	}
	w.run(25 * time.Second)
	if got, directions := w.directions(a, b); got[0][:5] != "fails" || got[1] != "works  " {
		t.Errorf("by request: %q: %+v", got, directions)
	}
	w.passes = always
	w.run(3 * time.Minute)
	if len(a.requests(w.now)) > 0 || len(a.queue) > 13 {
		t.Errorf("minutes later %d nodes are probed", len(a.queue))
	}
	for n := range 10 {
		if err := a.Request(w.nodes[10+n].NodeName, w.now); (err == nil) != (n < maxRequested) {
			t.Errorf("request %d: %v", n, err)
		}
	}
}
