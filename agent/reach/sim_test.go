package reach

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fairlead-cni/fairlead/agent/desired"
	"github.com/fairlead-cni/fairlead/agent/status"
	"github.com/fairlead-cni/fairlead/api"
	pure "github.com/fairlead-cni/fairlead/diagnose/reach"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

// tick is the resolution of a world's clock.
const tick = 100 * time.Millisecond

// world is a cluster without a network: what agents send is delivered immediately, or lost, on a simulated clock.
type world struct {
	now    time.Time
	nodes  []*simulated
	byAddr map[netip.Addr]*simulated
	random *rand.Rand
	// passes reports whether a packet of pods arrives, and pings whether a node's own address answers.
	passes, pings func(from, to *simulated, full bool) bool
	// unplugged is the node whose interface has no carrier.
	unplugged *simulated
	// alone is the node whose gateway does not answer.
	alone *simulated
	// drops returns what a node's own firewall drops, from a peer and to it.
	drops func(at, peer *simulated) (in, out string)
	// loses reports whether all packets of a family are lost; nil: none are.
	loses func(ipv4 bool) bool
	// drains reports whether packets from a source port are lost between the nodes; nil: none are.
	drains func(from, to *simulated, port uint16) bool
	// place is where lost packets are dropped; nil: between the nodes.
	place func(from, to *simulated) place
	taps  map[*simTap]bool
	// spoils returns whether and how a transfer fails although packets pass; nil: none does.
	spoils  func(from, to *simulated) pure.Outcome
	polices func(from, to *simulated) bool // transfers meet a rate limit
	// transferred is the number of transfers that have begun.
	transferred int
	// reported are all findings that any agent reported, as "node peer cause", each with the number of reports.
	reported map[string]int
}

// place is where lost packets are dropped.
type place int

const (
	between place = iota
	atSender
	atReceiver
	translated // at the receiver, with another source address
	unheld     // between, as the receiver does not have the address of its Node
)

// simTap is a capture of packets from at to peer, and from peer to at.
type simTap struct {
	world    *world
	at, peer *simulated
	seen     api.ReachTap
}

func (s *simulated) tap(_ *status.Status, to path) tap {
	t := &simTap{world: s.world, at: s, peer: s.world.byAddr[to.addr]}
	s.world.taps[t] = true
	return t
}

func (t *simTap) end() (api.ReachTap, bool) {
	delete(t.world.taps, t)
	t.seen.LeftBy, t.seen.ArrivedBy = "eth0", "eth0"
	if t.world.place != nil && t.world.place(t.peer, t.at) == unheld {
		t.seen.Unheld = "192.0.2.1"
	}
	return t.seen, true
}

// tapped lets the captures of both ends see a packet.
func (w *world) tapped(from, to *simulated, full, passes bool) {
	place := between
	if w.place != nil {
		place = w.place(from, to)
	}
	one := map[bool]int{true: 1}
	for t := range w.taps {
		switch {
		case t.at == from && t.peer == to && (passes || place != atSender):
			t.seen.Left, t.seen.LeftFull = t.seen.Left+1, t.seen.LeftFull+one[full]
		case t.at == to && t.peer == from && (passes || place == atReceiver || place == translated):
			t.seen.Arrived, t.seen.ArrivedFull = t.seen.Arrived+1, t.seen.ArrivedFull+one[full]
			if place == translated {
				t.seen.Source = "192.0.2.9"
			}
		}
	}
}

// simulated is a node with an agent.
type simulated struct {
	*session
	world     *world
	number    int
	ahead     time.Duration // of its clock
	dead      bool          // the agent does not run, and its kernel refuses
	hung      bool          // the agent is stopped, and its kernel queues packets
	idle      bool          // it does not probe: it has no end, only the gateway of its pods
	kept      []heard
	looks     int
	examining int // number of paths it has examined
}

func always(_, _ *simulated, _ bool) bool { return true }

// newWorld is a healthy cluster of n nodes.
func newWorld(n int) *world {
	w := &world{now: time.Unix(1e9, 0), byAddr: map[netip.Addr]*simulated{}, random: rand.New(rand.NewPCG(1, 2)),
		passes: always, pings: always, taps: map[*simTap]bool{}, reported: map[string]int{}}
	var peers []desired.Peer
	for i := range n {
		podCIDR := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 77, byte(i), 0}), 24)
		peers = append(peers, desired.Peer{Name: fmt.Sprintf("node%02d", i), Tunnel: netip.AddrFrom4([4]byte{192, 168, 77, byte(i)}),
			PodCIDRs: []desired.PeerCIDR{{Prefix: podCIDR, Path: desired.PathTunnel}}})
	}
	for i, own := range peers {
		s := &simulated{world: w, number: i}
		board := status.NewBoard(nil)
		board.Publish(&status.Status{Computed: status.Computed{Peers: slices.Concat(peers[:i], peers[i+1:])}})
		s.start(own.Name, endsOf(own), board)
		w.nodes = append(w.nodes, s)
		w.byAddr[endsOf(own)[0]] = s
	}
	return w
}

// start starts the node's agent, or its successor.
func (s *simulated) start(name string, ends []netip.Addr, board *status.Board) {
	cfg := api.AgentConfig{Reachability: api.ReachabilityProbe, TunnelType: api.TunnelGeneve}
	prober := New(Parts{Config: cfg, NodeName: name, Board: board,
		Metrics: status.NewMetrics("test"), Interval: 2 * time.Second, Log: logr.Discard()})
	s.session = newSession(prober, end{addrs: ends, mtu: 1450})
	s.dial = func(from netip.AddrPort, to netip.Addr) (socket, error) {
		port := from.Port()
		if port == 0 { // the kernel picks one
			port = uint16(32768 + s.world.random.IntN(28232))
		}
		return &wireless{from: s, to: s.world.byAddr[to], ipv4: to.Is4(), port: port}, nil
	}
	s.session.examine, s.session.open, s.connect = s.examine, s.tap, s.transfer
	s.dead = false
	s.choose(s.world.now.Add(s.ahead))
}

func (s *simulated) restart() { s.start(s.NodeName, s.addrs, s.Board) }

// wireless is a simulated socket from one node to another.
type wireless struct {
	from, to *simulated
	ipv4     bool
	port     uint16
	refused  bool
}

func (c *wireless) Write(b []byte) (int, error) {
	w := c.from.world
	p, err := pure.Parse(b)
	if err == nil {
		w.tapped(c.from, c.to, p.Full, w.passes(c.from, c.to, p.Full))
	}
	switch {
	case err != nil:
		return 0, err
	case w.loses != nil && w.loses(c.ipv4):
	case w.drains != nil && w.drains(c.from, c.to, c.port):
	case !w.passes(c.from, c.to, p.Full):
	case c.to.idle:
	case c.to.dead:
		c.refused = w.passes(c.to, c.from, false)
	case len(c.to.kept) < 100: // its kernel queues some
		i := slices.IndexFunc(c.from.addrs, func(a netip.Addr) bool { return a.Is4() == c.ipv4 })
		c.to.kept = append(c.to.kept, heard{c.from.addrs[i], p, w.now})
	}
	return len(b), nil
}

func (c *wireless) Refused() bool { return c.refused }
func (c *wireless) Close() error  { return nil }

// examine returns the simulated evidence.
func (s *simulated) examine(_ context.Context, _ *status.Status, paths []path) []examined {
	out := make([]examined, len(paths))
	answer := func(to *simulated, full bool) pure.Answer {
		if s.world.pings(s, to, full) && s.world.pings(to, s, full) {
			return pure.Answered
		}
		return pure.NoReply
	}
	for i, p := range paths {
		s.examining++
		to := s.world.byAddr[p.addr]
		out[i] = examined{p, pure.Evidence{Echo: answer(to, false), EndEcho: pure.NoReply, UnderlaySize: 1500}}
		if s.world.unplugged == s {
			out[i].NoCarrier = "eth0"
		}
		if s.world.alone == s && out[i].Echo == pure.NoReply {
			out[i].NoGateway = "192.168.0.1"
		}
		if s.world.drops != nil {
			out[i].DropsIn, out[i].DropsOut = s.world.drops(s, to)
		}
		if s.world.loses != nil && s.world.loses(p.addr.Is4()) {
			continue
		}
		if s.world.passes(s, to, false) && s.world.passes(to, s, false) {
			out[i].EndEcho, out[i].GatewayEcho = pure.Answered, pure.NotPinged
			if to.idle {
				out[i].EndEcho, out[i].GatewayEcho = pure.NoReply, pure.Answered
			}
		}
		if out[i].Echo == pure.Answered {
			out[i].FullEcho = answer(to, true)
		}
	}
	return out
}

// run advances the clock.
func (w *world) run(d time.Duration) {
	for end := w.now.Add(d); w.now.Before(end); w.now = w.now.Add(tick) {
		for _, s := range w.nodes {
			if !s.dead && !s.hung && !s.idle {
				s.run(w.now.Add(s.ahead))
			}
		}
	}
}

func (s *simulated) run(now time.Time) {
	if (now.UnixMilli()/tick.Milliseconds()+int64(s.number))%5 == 0 {
		for _, h := range s.kept {
			h.at = now
			s.receive(h)
		}
		s.kept = nil
		s.sendDue(now)
		s.transfers(now)
	}
	if (now.UnixMilli()/tick.Milliseconds()+int64(s.number))%10 > 0 {
		return
	}
	s.looks++
	s.choose(now)
	s.evaluate(context.Background(), now)
	if !s.busy.IsZero() {
		s.examined(<-s.done, now)
	}
	for _, f := range s.report.Findings {
		s.world.reported[fmt.Sprintf("%s %s %s", s.NodeName, f.Node, f.Cause)]++
	}
}

// wantNothingTold checks that no agent has reported a fault.
func (w *world) wantNothingTold(t *testing.T, what string) {
	t.Helper()
	if len(w.reported) > 0 {
		t.Errorf("%s: %d findings: %v", what, len(w.reported), slices.Sorted(maps.Keys(w.reported)))
	}
}

// wantCounted checks the metric of the number of other nodes in a state.
func (s *simulated) wantCounted(t *testing.T, state string, want int) {
	t.Helper()
	for _, other := range states() {
		got := testutil.ToFloat64(s.Metrics.Reach.Peers.WithLabelValues(other))
		if other == state && got != float64(want) || other != state && slices.Index(states(), other) > 2 && got != 0 {
			t.Errorf("%s counts %v nodes as %s, want %d as %s", s.NodeName, got, other, want, state)
		}
	}
}

// Nodes that were partners for an epoch stop probing each other, even if clocks differ, without a fault being reported.
func TestSampleStaysSmall(t *testing.T) {
	w := newWorld(60)
	for i, s := range w.nodes {
		s.ahead = time.Duration(i) * 800 * time.Millisecond
	}
	for minute := range 10 {
		w.run(time.Minute)
		for _, s := range w.nodes {
			if len(s.queue) > 13 {
				t.Fatalf("after %d minutes %s sends to %d nodes", minute+1, s.NodeName, len(s.queue))
			}
		}
	}
	w.wantNothingTold(t, "a healthy cluster")
	w.nodes[7].restart()
	w.run(5 * time.Minute)
	w.wantNothingTold(t, "an agent has restarted")
}

// A path that fails while two nodes are partners is probed until it works, and then dropped.
func TestFailedPartnerIsFollowed(t *testing.T) {
	w := newWorld(60)
	w.run(61 * time.Second) // past the beginning of an epoch
	a := w.nodes[0]
	partner := a.wanted[len(a.wanted)-1]
	w.passes = func(from, to *simulated, _ bool) bool { return from.NodeName != partner || to != a }
	w.run(5 * time.Minute)
	if fs := a.report.Findings; len(fs) != 1 || fs[0].Node != partner {
		t.Errorf("nothing arrives from %s, and %s reports %+v", partner, a.NodeName, fs)
	}
	w.passes = always
	w.run(time.Minute)
	if len(a.report.Findings) > 0 || len(a.queue) > 13 {
		t.Errorf("packets pass again: %+v, and %d are probed", a.report.Findings, len(a.queue))
	}
}

// Nodes with different send intervals judge each other by the sender's interval.
func TestPacesDiffer(t *testing.T) {
	w := newWorld(30)
	for i, s := range w.nodes {
		if i%3 == 0 {
			s.Interval = 7 * time.Second
		}
	}
	w.run(10 * time.Minute)
	w.wantNothingTold(t, "every third node is slow")
}

// Evidence collected while packets still arrived is not used for the time after, however late it is delivered.
func TestEvidenceOfBeforeTheFault(t *testing.T) {
	w := newWorld(2)
	w.run(time.Minute)
	s, to := w.nodes[0], path{w.nodes[1].NodeName, w.nodes[1].addrs[0]}
	began := w.now
	w.run(5 * time.Second)
	none := func(_, _ *simulated, _ bool) bool { return false }
	w.passes, w.pings = none, none
	w.run(15 * time.Second)
	s.busy = began // when the collection began
	s.examined([]examined{{to, pure.Evidence{Echo: pure.Answered}}}, w.now)
	for range 20 {
		w.run(time.Second)
		if p := s.report.Paths[0]; p.FromThere != string(pure.Fails) || p.Echo == string(pure.Answered) {
			t.Fatalf("nothing arrives, no ping is answered, and reported is %+v", p)
		}
	}
}

// A node that is cut off reports that; so do the nodes that probe it, until it is known to be down.
func TestCutOff(t *testing.T) {
	w := newWorld(12)
	w.run(time.Minute)
	w.wantNothingTold(t, "a healthy cluster")
	alone := w.nodes[3]
	apart := func(from, to *simulated, _ bool) bool { return from != alone && to != alone }
	w.passes, w.pings = apart, apart
	w.run(25 * time.Second)
	if len(alone.report.Findings) < 8 {
		t.Errorf("the node that is cut off does not say so: %+v", alone.report.Findings)
	}
	w.run(25 * time.Second)
	for what := range w.reported {
		if !strings.HasPrefix(what, alone.NodeName+" ") {
			t.Errorf("a node may be about to start, and it is reported: %s", what)
		}
	}
	w.run(time.Minute)
	for _, s := range w.nodes {
		for _, f := range s.report.Findings {
			if want := map[bool]string{true: "cut-off", false: "underlay"}[s == alone]; f.Cause != want || s != alone && f.Node != alone.NodeName {
				t.Errorf("%s reports %+v, want %s", s.NodeName, f, want)
			}
		}
	}
	if n := len(alone.report.Findings); n < 8 {
		t.Errorf("the node that is cut off has %d findings", n)
	}
	if len(w.reported) < 16 {
		t.Errorf("few say that %s answers nothing: %v", alone.NodeName, w.reported)
	}
	w.passes, w.pings = always, always
	w.run(time.Minute)
	w.reported = map[string]int{}
	w.run(time.Minute)
	w.wantNothingTold(t, "the node is back")
}

// A node that restarts so fast that no other node sees it down gets as much time to start its agent as others.
func TestNodeRestartsUnseen(t *testing.T) { bothStacks(t, nodeRestartsUnseen) }

func nodeRestartsUnseen(t *testing.T, newWorld func(n int) *world) {
	w := newWorld(3)
	w.run(time.Minute)
	s := w.nodes[1]
	s.dead = true // and nothing in Open vSwitch has its end any more
	w.passes = func(from, to *simulated, _ bool) bool { return from != s && to != s }
	w.run(90 * time.Second)
	w.passes = always
	s.restart()
	w.run(time.Minute)
	w.wantNothingTold(t, "a node was down for a moment, and starts its agent within a minute and a half")
	w.passes = func(from, to *simulated, _ bool) bool { return from != s && to != s }
	w.run(3 * time.Minute)
	if len(w.reported) == 0 {
		t.Error("no agent reports a node that is not reached")
	}
}

// Nodes that are down, and not ready according to the API server, are not reported as faults.
func TestNodesAreDown(t *testing.T) { bothStacks(t, nodesAreDown) }

func nodesAreDown(t *testing.T, newWorld func(n int) *world) {
	w := newWorld(12)
	w.run(time.Minute)
	up := func(s *simulated) bool { return s.number < 2 }
	both := func(from, to *simulated, _ bool) bool { return up(from) && up(to) }
	w.passes, w.pings = both, both
	w.nodes = w.nodes[:2]
	w.run(45 * time.Second)
	for _, s := range w.nodes {
		board := *s.Board.Load()
		board.Peers = slices.Clone(board.Peers)
		for i := range board.Peers {
			board.Peers[i].NotReady = !up(w.byAddr[endsOf(board.Peers[i])[0]])
		}
		s.Board.Publish(&board)
	}
	w.run(5 * time.Minute)
	w.wantNothingTold(t, "ten of twelve nodes are down")
}

// resolved is the number of times that a node's findings end within half an hour.
func (w *world) resolved(s *simulated) (times int) {
	had := false
	for range 1800 {
		w.run(time.Second)
		has := len(s.report.Findings) > 0
		if had && !has {
			times++
		}
		had = has
	}
	return times
}

// Any rate of loss is reported as loss, not as an MTU fault, and does not come and go.
func TestLossIsNoMTU(t *testing.T) {
	for _, share := range []float64{0.1, 0.2, 0.5, 0.8, 0.95} {
		w := newWorld(2)
		a, b := w.nodes[0], w.nodes[1]
		lossy := func(_, to *simulated, _ bool) bool { return to != b || w.random.Float64() >= share }
		w.passes, w.pings = lossy, lossy
		w.run(10 * time.Minute)
		if share == 0.2 {
			a.wantCounted(t, "lossy", 1)
		}
		resolved := w.resolved(a)
		for what := range w.reported {
			if strings.HasSuffix(what, " mtu") || strings.HasSuffix(what, " multipath") {
				t.Errorf("%.0f%% loss: %v", share*100, w.reported)
			}
		}
		if len(w.reported) == 0 || resolved > 12 || share >= 0.2 && resolved > 3 {
			t.Errorf("%.0f%% loss: reported %v, resolved %d times in half an hour", share*100, w.reported, resolved)
		}
	}
}

// If everything but full-size packets passes, and ping confirms it, the fault is the MTU.
func TestMTU(t *testing.T) {
	for _, pingsToo := range []bool{true, false} {
		w := newWorld(12)
		small := func(_, _ *simulated, full bool) bool { return !full }
		if w.passes = small; pingsToo {
			w.pings = small
		}
		w.run(2 * time.Minute)
		want := map[bool]string{true: "mtu", false: "not-found"}[pingsToo]
		for what := range w.reported {
			if !strings.HasSuffix(what, " "+want) {
				t.Errorf("reported %s, want %s", what, want)
			}
		}
		if len(w.reported) < 80 {
			t.Errorf("reported only %v", w.reported)
		}
		w.nodes[0].wantCounted(t, "narrow", len(w.nodes[0].report.Findings))
	}
}

// A short outage, as of a restarting switch, is not loss.
func TestOutage(t *testing.T) { bothStacks(t, outage) }

func outage(t *testing.T, newWorld func(n int) *world) {
	w := newWorld(12)
	w.run(time.Minute)
	w.passes = func(_, _ *simulated, _ bool) bool { return false }
	w.run(5 * time.Second)
	w.passes = always
	w.run(2 * time.Minute)
	w.wantNothingTold(t, "5 seconds")
}

// If the tunnel is blocked between all nodes, none reports that the fault is its own.
func TestBlockedEverywhere(t *testing.T) {
	w := newWorld(12)
	w.run(time.Minute)
	w.passes = func(_, _ *simulated, _ bool) bool { return false }
	w.run(2 * time.Minute)
	for _, s := range w.nodes {
		for _, f := range s.report.Findings {
			if f.Cause != "blocked" || !strings.Contains(f.Text, "udp port 6081 may be blocked") {
				t.Errorf("%s reports %+v", s.NodeName, f)
			}
		}
		if len(s.report.Findings) < 8 {
			t.Errorf("%s reports only %+v", s.NodeName, s.report.Findings)
		}
		s.wantCounted(t, "broken", len(s.report.Findings))
	}
}

// When a fault of both directions is over, no other is reported: the first packets still state that their senders
// receive nothing, and a partner of two minutes has not received any yet.
func TestFaultIsOver(t *testing.T) { bothStacks(t, faultIsOver) }

func faultIsOver(t *testing.T, newWorld func(n int) *world) {
	for _, c := range []struct {
		nodes   int
		minutes float64
	}{{3, 5}, {12, 5}, {12, 4.9}, {12, 4.85}} {
		w := newWorld(c.nodes)
		w.run(time.Minute)
		w.passes = func(_, _ *simulated, _ bool) bool { return false }
		w.run(time.Duration(c.minutes * float64(time.Minute)))
		w.passes, w.reported = always, map[string]int{}
		w.run(time.Minute)
		maps.DeleteFunc(w.reported, func(what string, _ int) bool { return strings.HasSuffix(what, " blocked") })
		w.wantNothingTold(t, fmt.Sprintf("%d nodes", c.nodes))
		for _, s := range w.nodes {
			if len(s.report.Findings) > 0 {
				t.Errorf("%s still reports %+v", s.NodeName, s.report.Findings)
			}
		}
	}
}

// In a cluster with tunnels and direct paths, a tunnel fault is not the cause of failures on other paths.
func TestNoTunnelIsNoCauseOfADirectPath(t *testing.T) {
	w := newWorld(3)
	a := w.nodes[0]
	board := *a.Board.Load()
	w.run(time.Minute)
	board.NoTunnel = errors.New("the tunnel has no address")
	board.Peers = slices.Clone(board.Peers)
	direct := slices.Clone(board.Peers[0].PodCIDRs)
	direct[0].Path, direct[0].Via = desired.PathDirect, netip.MustParseAddr("192.0.2.7")
	board.Peers[0].PodCIDRs = direct
	a.Board.Publish(&board)
	w.passes = func(from, to *simulated, _ bool) bool { return from != a && to != a }
	w.run(2 * time.Minute)
	got := map[string]string{}
	for _, f := range a.report.Findings {
		got[f.Node] = fmt.Sprint(f.Cause, " ", f.Address)
	}
	if want := map[string]string{"node01": "blocked 192.0.2.7", "node02": "no-tunnel 192.168.77.2"}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for i, want := range []delivery{{to: direct[0].Via}, {to: board.Peers[1].Tunnel, tunnelled: true}} {
		p := path{board.Peers[i].Name, endsOf(board.Peers[i])[0]}
		want.gateway = netip.AddrFrom4([4]byte{10, 77, byte(i + 1), 1})
		if got := deliveryOf(&board, p); got != want {
			t.Errorf("%s: %+v, want %+v", p.node, got, want)
		}
	}
}

// A node that is off for a long time costs little.
func TestNodeIsOffForLong(t *testing.T) {
	w := newWorld(2)
	w.run(time.Minute)
	up := w.nodes[0]
	w.nodes = w.nodes[:1]
	none := func(_, _ *simulated, _ bool) bool { return false }
	w.passes, w.pings = none, none
	w.run(10 * time.Minute)
	before := up.examining
	w.run(time.Hour)
	if n := up.examining - before; n < 20 || n > 35 {
		t.Errorf("examined %d times in an hour", n)
	}
}

// An agent that is dead or hangs is not a broken path, no matter for how long, even if all others are.
func TestAgentsAreAway(t *testing.T) { bothStacks(t, agentsAreAway) }

func agentsAreAway(t *testing.T, newWorld func(n int) *world) {
	w := newWorld(12)
	w.run(time.Minute)
	for i, s := range w.nodes[1:] {
		s.dead, s.hung = i%2 == 0, i%2 == 1
	}
	w.run(10 * time.Minute)
	w.wantNothingTold(t, "eleven agents do not run")
	for _, s := range w.nodes[1:] {
		s.dead, s.hung = false, false
	}
	w.run(5 * time.Minute)
	w.wantNothingTold(t, "they are back")
}

// publish changes a node's view of all nodes, itself included.
func (s *simulated) publish(change func(nodes map[string]inputs.Node, peers []desired.Peer) []desired.Peer) {
	board := *s.Board.Load()
	nodes := map[string]inputs.Node{s.NodeName: {Name: s.NodeName}}
	if board.Snapshot != nil {
		nodes = maps.Clone(board.Snapshot.Nodes)
	}
	board.Peers = change(nodes, slices.Clone(board.Peers))
	board.Snapshot = &inputs.Snapshot{Nodes: nodes}
	s.Board.Publish(&board)
}

// A node without an agent of Fairlead is not probed, whatever it answers, and a request to probe it is refused with the
// reason.
func TestNodeHasNoAgent(t *testing.T) {
	w := newWorld(5)
	foreign := w.nodes[2]
	for _, s := range w.nodes {
		s.publish(func(_ map[string]inputs.Node, peers []desired.Peer) []desired.Peer {
			for i := range peers {
				if peers[i].Name == foreign.NodeName {
					peers[i].NoAgent = "it runs windows"
				}
			}
			return peers
		})
	}
	foreign.hung = true
	w.passes = func(from, to *simulated, _ bool) bool { return from != foreign && to != foreign }
	w.run(5 * time.Minute)
	w.wantNothingTold(t, "one node is not Fairlead's")
	for _, s := range w.nodes {
		if s != foreign && s.report.Asked != 3 {
			t.Errorf("%s asks %d nodes, want 3", s.NodeName, s.report.Asked)
		}
	}
	if err := w.nodes[0].Request(foreign.NodeName, w.now); err == nil || !strings.Contains(err.Error(), "it runs windows") {
		t.Errorf("requested to probe it: %v", err)
	}
}

// Nothing is forwarded to a node that was removed from the cluster, which its agent, while it still runs, does not
// report as a fault. Once the node is back, everything works as before.
func TestNodeIsRemoved(t *testing.T) { bothStacks(t, nodeIsRemoved) }

func nodeIsRemoved(t *testing.T, newWorld func(n int) *world) {
	w := newWorld(5)
	w.run(time.Minute)
	gone := w.nodes[2]
	byName := func(p desired.Peer) bool { return p.Name == gone.NodeName }
	var was desired.Peer
	for _, s := range w.nodes {
		s.publish(func(nodes map[string]inputs.Node, peers []desired.Peer) []desired.Peer {
			delete(nodes, gone.NodeName)
			if i := slices.IndexFunc(peers, byName); i >= 0 {
				was = peers[i]
			}
			nodes["another"] = inputs.Node{}
			return slices.DeleteFunc(peers, byName)
		})
	}
	w.passes = func(from, to *simulated, _ bool) bool { return from != gone && to != gone }
	w.run(2 * time.Minute)
	w.wantNothingTold(t, "a Node is deleted")
	if !strings.Contains(gone.report.Problem, "no Node") {
		t.Errorf("the node that is removed says %+v", gone.report)
	}
	w.passes = always
	for _, s := range w.nodes {
		s.publish(func(nodes map[string]inputs.Node, peers []desired.Peer) []desired.Peer {
			nodes[gone.NodeName] = inputs.Node{}
			if s != gone {
				peers = append(peers, was)
				slices.SortFunc(peers, func(a, b desired.Peer) int { return strings.Compare(a.Name, b.Name) })
			}
			return peers
		})
	}
	w.run(time.Minute)
	w.wantNothingTold(t, "it is added again")
	if gone.report.Reached != 4 || gone.report.Problem != "" {
		t.Errorf("the node that was added again reports %+v", gone.report)
	}
}

// A node that does not probe is not a fault, no matter for how long: it has another config, or an agent of an earlier
// version, as during an upgrade. Packet loss to it is still detected.
func TestNodeDoesNotProbe(t *testing.T) { bothStacks(t, nodeDoesNotProbe) }

func nodeDoesNotProbe(t *testing.T, newWorld func(n int) *world) {
	w := newWorld(12)
	for _, s := range w.nodes[6:] {
		s.idle = true
	}
	w.run(20 * time.Minute)
	w.wantNothingTold(t, "half of the agents do not probe")
	w.passes = func(from, to *simulated, _ bool) bool { return from.number != 7 && to.number != 7 }
	w.run(5 * time.Minute)
	if len(w.reported) < 5 {
		t.Errorf("nothing arrives from a node that does not probe, and this is reported: %v", w.reported)
	}
	for what := range w.reported {
		if !strings.HasSuffix(what, "node07 not-found") {
			t.Errorf("reported %s", what)
		}
	}
}

// If nodes are behind routers, their own addresses are pinged as well.
func TestWayBehindRouters(t *testing.T) {
	w := newWorld(2)
	s, own := w.nodes[0], netip.MustParseAddr("192.0.2.7")
	s.publish(func(nodes map[string]inputs.Node, peers []desired.Peer) []desired.Peer {
		nodes["node01"] = inputs.Node{TunnelAddresses: []netip.Addr{netip.IPv6Loopback(), own}}
		peers[0].PodCIDRs = slices.Clone(peers[0].PodCIDRs)
		peers[0].PodCIDRs[0].Path, peers[0].Tunnel = desired.PathRouters, netip.Addr{}
		return peers
	})
	b := s.Board.Load()
	if got := deliveryOf(b, path{"node01", endsOf(b.Peers[0])[0]}); got.to != own || got.tunnelled {
		t.Errorf("got %+v, want %s", got, own)
	}
}

// Open vSwitch being down for seconds is not a cause, even while another node happens to be down. If it stays down, it
// is the cause, and no other is reported before.
func TestOpenVSwitchIsDown(t *testing.T) { bothStacks(t, openVSwitchIsDown) }

func openVSwitchIsDown(t *testing.T, newWorld func(n int) *world) {
	w := newWorld(5)
	w.run(time.Minute)
	a, b := w.nodes[0], w.nodes[1]
	down := func(err error) {
		board := *a.Board.Load()
		board.OVSDown = err
		a.Board.Publish(&board)
	}
	apart := func(of ...*simulated) {
		w.passes = func(from, to *simulated, _ bool) bool {
			return !slices.Contains(of, from) && !slices.Contains(of, to)
		}
		w.pings = func(from, to *simulated, _ bool) bool { return from != b && to != b }
	}
	b.dead = true
	apart(b)
	w.run(30 * time.Second)
	apart(a, b)
	down(errors.New("ovs-vswitchd is down"))
	w.run(5 * time.Second)
	apart(b)
	down(nil)
	w.run(20 * time.Second)
	w.wantNothingTold(t, "Open vSwitch is restarted, and a node is down")
	w.passes, w.pings = always, always
	b.restart()
	w.run(time.Minute)
	apart(a)
	w.pings = always
	down(errors.New("ovs-vswitchd is down"))
	w.run(3 * time.Minute)
	for _, f := range a.report.Findings {
		if f.Cause != "no-tunnel" {
			t.Errorf("found %+v", f)
		}
	}
	for what := range w.reported {
		if strings.HasPrefix(what, "node00") && !strings.HasSuffix(what, "no-tunnel") {
			t.Errorf("reported %s", what)
		}
	}
	if len(a.report.Findings) != 4*len(a.addrs) {
		t.Errorf("found only %+v", a.report.Findings)
	}
}

// Packets lost because Open vSwitch dies repeatedly at either end do not count as loss between the nodes.
func TestOpenVSwitchDiesAgainAndAgain(t *testing.T) { bothStacks(t, openVSwitchDiesAgainAndAgain) }

func openVSwitchDiesAgainAndAgain(t *testing.T, newWorld func(n int) *world) {
	w := newWorld(3)
	w.run(time.Minute)
	a, b := w.nodes[0], w.nodes[1]
	pace := a.Interval * time.Duration(len(a.addrs))
	start := func(s *simulated, id string) {
		board := *s.Board.Load()
		board.OVSStart = id
		s.Board.Publish(&board)
	}
	for i := range 20 {
		s := []*simulated{a, b}[i%2]
		w.passes = func(from, to *simulated, _ bool) bool { return from != s && to != s }
		if i%3 > 0 { // otherwise it was back before anything was published
			start(s, "")
		}
		w.run(pace + tick)
		w.passes = always
		start(s, strconv.Itoa(i))
		w.run(3 * pace)
	}
	w.wantNothingTold(t, "Open vSwitch was restarted 20 times")
}

// An agent that has hung finds packets that its kernel has queued: their statement that the node is not heard is
// outdated.
func TestAgentHasHung(t *testing.T) { bothStacks(t, agentHasHung) }

func agentHasHung(t *testing.T, newWorld func(n int) *world) {
	for _, d := range []time.Duration{10 * time.Second, 30 * time.Second, time.Minute, 10 * time.Minute} {
		for _, n := range []int{2, 6, 12} {
			w := newWorld(n)
			w.run(time.Minute)
			w.nodes[0].hung = true
			w.run(d)
			w.nodes[0].hung = false
			w.run(2 * time.Minute)
			w.wantNothingTold(t, fmt.Sprintf("one of %d agents has hung for %s", n, d))
			w.nodes[0].hung = true
			w.passes = func(from, to *simulated, _ bool) bool { return from.number != 1 && to.number != 1 }
			w.run(d)
			w.nodes[0].hung = false
			w.run(100 * time.Second)
			w.passes = always
			w.nodes[1].restart()
			w.run(time.Minute)
			for what := range w.reported {
				if strings.HasPrefix(what, "node00 ") {
					t.Errorf("while one of %d hung for %s another has rebooted: %s", n, d, what)
				}
			}
		}
	}
}

// A capture made while a node was down is not used for a fault that exists once the node is back.
func TestLookIsOfItsTime(t *testing.T) {
	w := newWorld(3)
	w.run(time.Minute)
	a, b := w.nodes[0], w.nodes[1]
	w.passes = func(from, to *simulated, _ bool) bool { return from != b && to != b }
	w.pings = w.passes
	w.place = func(_, _ *simulated) place { return atSender } // no neighbour answers
	w.run(40 * time.Second)
	w.pings, w.place = always, nil
	w.passes = func(from, to *simulated, _ bool) bool { return from.number+to.number != 1 }
	for range 90 {
		w.run(time.Second)
		if _, both := w.directions(a, b); both[0].Cause == pure.CauseDropped || both[1].Cause == pure.CauseDropped {
			t.Fatalf("a node that drops nothing is blamed: %+v", both)
		}
	}
	if words, _ := w.directions(a, b); words[0] != "fails between " {
		t.Errorf("in the end: %q", words)
	}
}

// A node that was down, and not ready, is back and ready before it is pinged again, and its agent starts a moment
// later.
func TestNodeComesBack(t *testing.T) { bothStacks(t, nodeComesBack) }

func nodeComesBack(t *testing.T, newWorld func(n int) *world) {
	for off := 50 * time.Second; off < 100*time.Second; off += 3 * time.Second {
		w := newWorld(3)
		w.run(time.Minute)
		b := w.nodes[1]
		b.dead = true
		w.passes = func(from, to *simulated, _ bool) bool { return from != b && to != b }
		w.pings = w.passes
		w.run(45 * time.Second)
		w.notReady(b, true)
		w.run(off - 45*time.Second)
		w.notReady(b, false)
		w.pings = always
		w.run(10 * time.Second)
		w.passes = always
		b.restart()
		w.run(time.Minute)
		w.wantNothingTold(t, fmt.Sprintf("a node that was off for %s", off))
	}
}

// The API server reports a node that was off for a long time as ready before its own address answers. IPv6 addresses
// answer last.
func TestNodeIsReadyBeforeItAnswers(t *testing.T) { bothStacks(t, nodeIsReadyBeforeItAnswers) }

func nodeIsReadyBeforeItAnswers(t *testing.T, newWorld func(n int) *world) {
	for _, restarted := range []bool{false, true} { // the agent that must not report it
		w := newWorld(3)
		w.run(time.Minute)
		a, b := w.nodes[0], w.nodes[1]
		b.dead = true
		w.passes = func(from, to *simulated, _ bool) bool { return from != b && to != b }
		w.pings = w.passes
		w.run(45 * time.Second)
		w.notReady(b, true)
		w.run(time.Minute)
		if restarted {
			a.restart()
		}
		w.run(time.Minute)
		w.notReady(b, false)
		w.run(20 * time.Second)
		w.wantNothingTold(t, "a node that was off has been ready for 20 s")
		w.run(3 * time.Minute) // evidence of a long-failing path is renewed every 2 minutes
		if f := a.report.Findings; len(f) == 0 || f[0].Cause != "underlay" {
			t.Errorf("a node that does not answer has been ready for minutes: found %+v", f)
		}
	}
}

// notReady sets whether the API server reports a node as not ready.
func (w *world) notReady(node *simulated, is bool) {
	for _, other := range w.nodes {
		other.publish(func(_ map[string]inputs.Node, peers []desired.Peer) []desired.Peer {
			for i := range peers {
				if peers[i].Name == node.NodeName {
					peers[i].NotReady = is
				}
			}
			return peers
		})
	}
}

// A node that has just been created, or restarted, answers ping long before its agent runs: until then it is not ready.
func TestNotReadyIsNoFault(t *testing.T) { bothStacks(t, notReadyIsNoFault) }

func notReadyIsNoFault(t *testing.T, newWorld func(n int) *world) {
	w := newWorld(4)
	fresh := w.nodes[3]
	fresh.hung = true
	w.passes = func(from, to *simulated, _ bool) bool { return from != fresh && to != fresh }
	w.notReady(fresh, true)
	w.run(10 * time.Minute)
	w.wantNothingTold(t, "one is not ready")
}

// A path that loses nearly all packets, so that at times nothing arrives for a while, has one fault.
func TestHeavyLossIsOneFault(t *testing.T) {
	for _, share := range []float64{0.6, 0.9} {
		w := newWorld(3)
		a, b := w.nodes[0], w.nodes[1]
		w.run(time.Minute)
		w.passes = func(x, y *simulated, _ bool) bool {
			return !(x == a && y == b || x == b && y == a) || w.random.Float64() >= share
		}
		w.run(5 * time.Minute)
		if resolved := w.resolved(a); resolved > 8 { // was 24 to 57 times
			t.Errorf("with %.0f %% lost the fault was resolved %d times in half an hour", 100*share, resolved)
		}
	}
}

// When one of two directions works again, reports that nothing arrives on it end soon.
func TestOneDirectionRecovers(t *testing.T) {
	for _, c := range []struct {
		name  string
		pings bool // pings pass all the time
		place place
		limit time.Duration // until the report ends
	}{
		// Once the other end is heard again, it needs time to miss packets before it is known whether it hears this
		// one.
		{"dropped at the receivers", true, atReceiver, 14 * time.Second},
		{"the underlay", false, between, 4 * time.Second},
	} {
		w := newWorld(4)
		a, b := w.nodes[0], w.nodes[1]
		w.run(time.Minute)
		both := func(from, to *simulated, _ bool) bool { return from.number+to.number != 1 }
		w.passes, w.place = both, func(_, _ *simulated) place { return c.place }
		if !c.pings {
			w.pings = both
		}
		w.run(3 * time.Minute)
		if len(a.report.Findings) != 1 || a.report.Findings[0].Cause == "not-found" {
			t.Fatalf("%s: found %+v", c.name, a.report.Findings)
		}
		cause := a.report.Findings[0].Cause
		one := func(from, to *simulated, _ bool) bool { return from != a || to != b }
		w.passes = one
		if !c.pings {
			w.pings = one
		}
		began := w.now
		for len(a.report.Findings) > 0 && a.report.Findings[0].Cause == cause && w.now.Sub(began) < time.Minute {
			w.run(time.Second)
		}
		took := w.now.Sub(began)
		t.Logf("%s: reported as %s until %s after packets come from there again", c.name, cause, took)
		if took > c.limit {
			t.Errorf("%s: want at most %s", c.name, c.limit)
		}
		w.run(time.Minute)
		if f := a.report.Findings; len(f) != 1 || f[0].FromThere != "works" || f[0].ToThere != "fails" ||
			strings.Contains(f[0].Text, "to pods on this node") {
			t.Errorf("%s: a minute later %+v", c.name, f)
		}
	}
}
