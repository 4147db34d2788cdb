package reach

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	pure "github.com/fairlead-cni/fairlead/diagnose/reach"
)

// simTransfer is a transfer from one node to another, which passes if packets pass at several times.
type simTransfer struct {
	from, to *simulated
	ipv4     bool
	port     uint16
	single   bool
	stage    int // 1: connected, 3: everything has arrived
}

func (s *simulated) transfer(_, to netip.Addr, _ []byte, single bool) (transfer, error) {
	s.world.transferred++
	return &simTransfer{from: s, to: s.world.byAddr[to], ipv4: to.Is4(), single: single,
		port: uint16(32768 + s.world.transferred*40503%28232)}, nil
}

func (c *simTransfer) step() (pure.Outcome, bool) {
	w := c.from.world
	passes := w.passes(c.from, c.to, c.stage > 0) && w.passes(c.to, c.from, false) && !c.to.idle &&
		!(w.loses != nil && w.loses(c.ipv4)) && !(w.drains != nil && w.drains(c.from, c.to, c.port))
	if w.spoils != nil {
		switch w.spoils(c.from, c.to) {
		case pure.Unclear: // like an agent of an earlier version
			return pure.Unclear, true
		case pure.Unanswered:
			passes = false
		case pure.Stuck:
			passes = passes && c.stage == 0
		}
	}
	switch {
	case passes && c.to.dead:
		return pure.Unclear, true
	case passes && !(c.to.hung && c.stage > 0):
		c.stage++
	}
	if c.stage == 0 {
		return pure.Unanswered, false
	}
	return map[bool]pure.Outcome{true: c.arrived(), false: pure.Stuck}[c.stage >= 3], c.stage >= 3
}

func (c *simTransfer) arrived() pure.Outcome {
	w := c.from.world
	spoils := w.spoils != nil && w.spoils(c.from, c.to) == pure.Resent
	if spoils && !c.single || w.polices != nil && w.polices(c.from, c.to) {
		return pure.Resent
	}
	return pure.Passed
}

func (*simTransfer) Close() error { return nil }

// A path that passes single packets but no transfers is reported by the node that sends on it, until it works again.
// The limit is from break to report: each peer has its turn every half minute, in dual-stack clusters twice.
func TestTransfersFail(t *testing.T) { bothStacks(t, transfersFail) }

func transfersFail(t *testing.T, newWorld func(n int) *world) {
	for _, c := range []struct {
		nodes int
		how   pure.Outcome
		cause string
	}{{2, pure.Stuck, "segments"}, {3, pure.Unanswered, "tcp"}, {10, pure.Stuck, "segments"}, {2, pure.Resent, "segments"},
		{10, pure.Resent, "segments"}} {
		w := newWorld(c.nodes)
		a, b := w.nodes[0], w.nodes[1]
		w.run(3 * time.Minute)
		w.wantNothingTold(t, "transfers pass")
		w.spoils = func(from, to *simulated) pure.Outcome {
			if from == a && to == b {
				return c.how
			}
			return pure.Passed
		}
		limit := time.Duration(len(a.queue))*pure.TransferEvery*a.Interval + 40*time.Second
		if c.how == pure.Resent {
			limit += time.Minute + time.Duration(len(a.addrs)-1)*30*time.Second
		}
		began := w.now
		for len(a.report.Findings) < len(a.addrs) && w.now.Sub(began) < limit {
			w.run(time.Second)
		}
		t.Logf("%d nodes, %s: reported after %s, limit %s", c.nodes, c.how, w.now.Sub(began), limit)
		w.run(5 * time.Minute)
		fs := a.report.Findings
		if len(fs) != len(a.addrs) || fs[0].Cause != c.cause || fs[0].ToThere != string(pure.NoTCP) ||
			len(w.reported) != 1 || len(b.report.Findings) > 0 {
			t.Errorf("%d nodes, %s: %+v, and reported %v", c.nodes, c.how, fs, w.reported)
		}
		a.wantCounted(t, "broken", 1)
		for _, way := range pure.Join(a.side(b), b.side(a)) {
			if is := way.From == a.NodeName; is != (way.Is == pure.NoTCP && string(way.Cause) == c.cause) {
				t.Errorf("both ends know %+v", way)
			}
		}
		w.spoils = nil
		w.run(time.Minute + time.Duration(len(a.addrs))*10*time.Second)
		if len(a.report.Findings) > 0 {
			t.Errorf("transfers pass again: %+v", a.report.Findings)
		}
	}
}

// Transfers that fail while packets are lost, or while nodes and agents come and go, are not a TCP fault; nor are those
// on a path on which it is not known whether packets pass.
func TestTransfersOfOtherFaults(t *testing.T) { bothStacks(t, transfersOfOtherFaults) }

func transfersOfOtherFaults(t *testing.T, newWorld func(n int) *world) {
	w := newWorld(3)
	w.run(2 * time.Minute)
	for round := range 300 {
		s, other := w.nodes[w.random.IntN(3)], w.nodes[w.random.IntN(3)]
		outage := time.Duration(w.random.IntN(40)) * time.Second
		what := []string{"outage", "hung", "restart", "loss", "one direction", "flaps"}[round%6]
		switch what {
		case "outage":
			w.passes = func(from, to *simulated, _ bool) bool { return from != s && to != s }
		case "one direction":
			w.passes = func(from, to *simulated, _ bool) bool { return from != s || to != other }
		case "loss":
			w.passes = func(_, _ *simulated, _ bool) bool { return w.random.IntN(10) > 0 }
		case "flaps":
			outage += 2 * time.Minute
			period := int64(16 + w.random.IntN(6))
			w.passes = func(from, to *simulated, _ bool) bool { return from != s && to != s || w.now.Unix()%period > 8 }
		case "hung":
			s.hung = true
		case "restart":
			s.dead = true
		}
		w.run(outage)
		if w.passes, s.hung = always, false; what == "restart" {
			s.restart()
		}
		w.run(time.Duration(w.random.IntN(60)) * time.Second)
	}
	for told := range w.reported {
		if strings.HasSuffix(told, " tcp") || strings.HasSuffix(told, " segments") {
			t.Errorf("reported %v", w.reported)
		}
	}
	t.Logf("%d transfers, reported %v", w.transferred, w.reported)
}

// A rate limit on the path drops bursts, whatever the packet size: that is not a fault of segments, whether it affects
// all transfers or some.
func TestTransfersMeetRateLimit(t *testing.T) { bothStacks(t, transfersMeetRateLimit) }

func transfersMeetRateLimit(t *testing.T, newWorld func(n int) *world) {
	w := newWorld(3)
	w.polices = func(_, _ *simulated) bool { return true }
	w.run(10 * time.Minute)
	w.wantNothingTold(t, "all transfers meet a rate limit")
	for _, most := range []int{1, 9} {
		w.polices = func(_, _ *simulated) bool { return w.random.IntN(10) < most }
		w.run(10 * time.Minute)
		w.wantNothingTold(t, fmt.Sprintf("of 10 transfers %d meet a rate limit", most))
	}
}

// Agents of an earlier version refuse transfers, which is not a fault, even if some transfers get no answer.
func TestTransfersRefused(t *testing.T) {
	w := newWorld(3)
	w.spoils = func(_, _ *simulated) pure.Outcome { return pure.Unclear }
	w.run(10 * time.Minute)
	w.wantNothingTold(t, "transfers are refused")
	w.spoils = func(_, _ *simulated) pure.Outcome {
		return []pure.Outcome{pure.Unclear, pure.Unanswered, pure.Stuck}[w.transferred%3]
	}
	w.run(20 * time.Minute)
	for told, n := range w.reported {
		t.Errorf("reported %d times %s", n, told)
	}
}

// Each node makes one transfer every half minute, regardless of the others, and every other node gets its turn.
func TestTransfersTakeTurns(t *testing.T) {
	w := newWorld(10)
	with := map[string]int{}
	for _, s := range w.nodes {
		begin := s.connect
		s.connect = func(from, to netip.Addr, b []byte, single bool) (transfer, error) {
			with[fmt.Sprint(s.NodeName, " ", w.byAddr[to].NodeName)]++
			return begin(from, to, b, single)
		}
	}
	w.run(9 * time.Minute)
	if len(with) < 90 || w.transferred > 10*19 {
		t.Errorf("%d pairs and %d transfers in 9 minutes: %v", len(with), w.transferred, slices.Sorted(maps.Keys(with)))
	}
}
