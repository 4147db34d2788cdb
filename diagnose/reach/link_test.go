package reach

import (
	"testing"
	"time"
)

// pair is two ends and the path between them.
type pair struct {
	a, b Link
	now  time.Time
	// toB and toA report whether a packet arrives; bAway: b's agent is not running, and b's kernel refuses packets if
	// refuses.
	toB, toA       func(Packet) bool
	bAway, refuses bool
}

func all(Packet) bool     { return true }
func none(Packet) bool    { return false }
func small(p Packet) bool { return !p.Full }

func newPair() *pair {
	return &pair{a: Link{Interval: 2 * time.Second}, b: Link{Interval: 2 * time.Second}, now: time.Unix(1e9,
		0), toB: all, toA: all}
}

// run advances the clock.
func (p *pair) run(d time.Duration) {
	for end := p.now.Add(d); p.now.Before(end); {
		switch out := p.a.Next(p.now); {
		case !p.toB(out):
		case !p.bAway:
			p.b.Receive(out, p.now)
		case p.refuses && p.toA(Packet{}):
			p.a.Refused(p.now)
		}
		p.now = p.now.Add(p.a.Interval / 2)
		if !p.bAway {
			if out := p.b.Next(p.now); p.toA(out) {
				p.a.Receive(out, p.now)
			}
		}
		p.now = p.now.Add(p.a.Interval / 2)
	}
}

func (p *pair) want(t *testing.T, what string, fromA, toA, fromB, toB DirectionState) {
	t.Helper()
	a, b := p.a.State(p.now), p.b.State(p.now)
	if a.From != fromA || a.To != toA || b.From != fromB || b.To != toB {
		t.Errorf("%s: a has %s from, %s to; b has %s from, %s to; want %s, %s, %s, %s", what, a.From, a.To,
			b.From, b.To,
			fromA, toA, fromB, toB)
	}
}

func TestLink(t *testing.T) {
	p := newPair()
	p.want(t, "at first", Unknown, Unknown, Unknown, Unknown)
	p.run(10 * time.Second)
	p.want(t, "soon", Works, Works, Works, Works)
	p.run(5 * time.Minute)
	p.want(t, "later", Works, Works, Works, Works)
	p.toB = none
	p.run(8 * time.Second)
	p.want(t, "four packets are lost", Works, Works, Works, Works)
	p.run(8 * time.Second)
	p.want(t, "a does not reach b", Works, Fails, Fails, Unknown)
	p.toA = none
	p.run(12 * time.Second)
	p.want(t, "neither does b reach a", Fails, Unknown, Fails, Unknown)
	p.toA, p.toB = all, all
	p.run(4 * time.Second)
	p.want(t, "all passes again", Works, Works, Works, Works)
}

// A path that has never worked is detected as well, in either direction and in both.
func TestLinkFromTheStart(t *testing.T) {
	p := newPair()
	p.toB = none
	p.run(14 * time.Second)
	p.want(t, "a does not reach b", Works, Fails, Fails, Unknown)
	p = newPair()
	p.toA, p.toB = none, none
	p.run(14 * time.Second)
	p.want(t, "nothing passes", Fails, Unknown, Fails, Unknown)
	if p.a.State(p.now).EverHeard {
		t.Error("nothing was heard")
	}
}

func TestLinkNarrow(t *testing.T) {
	p := newPair()
	p.run(time.Minute)
	p.toB = small
	p.run(14 * time.Second)
	p.want(t, "two full-size packets are lost", Works, Works, Works, Works)
	p.run(10 * time.Second)
	p.want(t, "full-size packets to b are lost", Works, Narrow, Narrow, Works)
	p.toB = all
	p.run(8 * time.Second)
	p.want(t, "one full-size packet passes", Works, Narrow, Narrow, Works)
	p.run(20 * time.Second)
	p.want(t, "all passes again", Works, Works, Works, Works)
	p = newPair()
	p.toA, p.toB = small, small
	p.run(50 * time.Second)
	p.want(t, "narrow from the start", Narrow, Narrow, Narrow, Narrow)
}

// A dead agent counts as away while its kernel refuses packets, however long that is, and as back as soon as it is
// heard.
func TestLinkAgentDown(t *testing.T) {
	p := newPair()
	p.run(time.Minute)
	p.bAway, p.refuses = true, true
	for range 60 {
		p.run(2 * time.Second)
		if s := p.a.State(p.now); s.From == Fails || s.To == Fails {
			t.Fatalf("a dead agent: %+v", s)
		}
	}
	if !p.a.State(p.now).Away {
		t.Error("the agent is not away")
	}
	p.bAway, p.b = false, Link{Interval: p.b.Interval}
	p.run(2 * time.Second)
	if s := p.a.State(p.now); s.Away {
		t.Errorf("it is heard again: %+v", s)
	}
	for range 60 {
		p.run(2 * time.Second)
		for _, s := range []State{p.a.State(p.now), p.b.State(p.now)} {
			if s.From == Fails || s.To == Fails || s.From == Narrow || s.To == Narrow {
				t.Fatalf("a new agent: %+v", s)
			}
		}
	}
	p.want(t, "a new agent", Works, Works, Works, Works)
	if s := p.a.State(p.now); s.LostFrom+s.LostTo > 0 {
		t.Errorf("packets that were never sent are lost: %+v", s)
	}
	p.bAway, p.toB = true, none
	p.run(14 * time.Second)
	if s := p.a.State(p.now); s.From != Fails || s.Away {
		t.Errorf("nothing is refused, nothing is heard: %+v", s)
	}
}

// An agent that has announced that it stops counts as away for a limited time only.
func TestLinkLeaving(t *testing.T) {
	p := newPair()
	p.run(time.Minute)
	bye := p.b.Next(p.now)
	bye.Leaving = true
	p.a.Receive(bye, p.now)
	p.bAway = true
	p.run(time.Minute)
	if s := p.a.State(p.now); !s.Away {
		t.Errorf("after a minute: %+v", s)
	}
	p.run(2 * time.Minute)
	if s := p.a.State(p.now); s.From != Fails {
		t.Errorf("after three: %+v", s)
	}
}

// Packets missed while this process was suspended do not count as lost.
func TestLinkPaused(t *testing.T) {
	p := newPair()
	p.run(time.Minute)
	for range 3 {
		p.now = p.now.Add(time.Minute)
		for range 5 {
			p.a.Next(p.now)
			if s := p.a.State(p.now); s.From == Fails || s.To == Fails {
				t.Fatalf("after a pause: %+v", s)
			}
		}
		p.run(time.Minute)
		p.want(t, "after a pause", Works, Works, Works, Works)
	}
}

func TestLinkCountsLosses(t *testing.T) {
	p := newPair()
	n := 0
	p.toB = func(Packet) bool { n++; return n%4 != 0 }
	p.run(2 * time.Minute)
	a, b := p.a.State(p.now), p.b.State(p.now)
	if a.LostTo != 8 || b.LostFrom != 8 || a.LostFrom+b.LostTo != 0 {
		t.Errorf("every fourth packet to b is lost: a %+v, b %+v", a, b)
	}
	p.want(t, "lossy", Works, Lossy, Lossy, Works)
	p.toB = all
	p.run(30 * time.Second)
	p.want(t, "some packets in a row pass", Works, Lossy, Lossy, Works)
	p.run(45 * time.Second)
	p.want(t, "all pass", Works, Works, Works, Works)
}

// Neither one nor two outages count as packet loss, however many packets they cost.
func TestLinkOutageIsNotLossy(t *testing.T) {
	p := newPair()
	for range 2 {
		p.toB = all
		p.run(10 * time.Second)
		p.toB = none
		p.run(20 * time.Second)
	}
	p.toB = all
	p.run(4 * time.Second)
	p.want(t, "two outages", Works, Works, Works, Works)
}

// Packets may arrive late and twice.
func TestLinkOrder(t *testing.T) {
	var a, b Link
	a.Interval, b.Interval = time.Second, time.Second
	now := time.Unix(1e9, 0)
	var held []Packet
	for i := range 100 {
		now = now.Add(time.Second)
		if held = append(held, b.Next(now)); i%3 == 2 {
			for j := range held {
				a.Receive(held[len(held)-1-j], now)
				a.Receive(held[0], now)
			}
			held = nil
		}
		a.Next(now)
	}
	if s := a.State(now); s.LostFrom != 0 || s.From != Works {
		t.Errorf("all came, in another order: %+v", s)
	}
}
