package reach

import (
	"time"

	pure "github.com/fairlead-cni/fairlead/diagnose/reach"
)

// mostTurns is how many packets a path gets, at most, for each of another, while it is not known whether it works.
const mostTurns = 3

// setPaces says how often each path gets a packet: all equally often, at most one each Interval. Where they are too
// many for that, those of which it is not known whether they work get more.
func (t *talk) setPaces(now time.Time) {
	urgent := map[path]bool{}
	for _, p := range t.queue {
		if t.peers[p].Undecided(now) || t.peers[p].unsure(now) {
			urgent[p] = true
		}
	}
	times, usual := 1, len(t.queue)-len(urgent)
	for times < mostTurns && usual+(times+1)*len(urgent) >= (times+1)*mostSent {
		times++
	}
	turns := usual + times*len(urgent)
	t.step = max(t.Interval/mostSent, t.Interval/time.Duration(max(1, turns)))
	for _, p := range t.queue {
		t.peers[p].Interval = t.step * time.Duration(turns)
		if urgent[p] {
			t.peers[p].Interval /= time.Duration(times)
		}
	}
}

// unsure reports whether a direction fails, by what is known, and that is not told yet, or the peer is heard, and it is
// not known whether this end is.
func (p *peer) unsure(now time.Time) bool {
	s := p.State(now)
	return !p.verdict.Broken && (s.Doubtful() || s.From == pure.Works && s.To == pure.Unknown)
}

// nextPath is the path that has waited for a packet for longest, by its pace; there is one.
func (t *talk) nextPath() (next path) {
	var due time.Time
	for i, p := range t.queue {
		if at := t.peers[p].Due(); i == 0 || at.Before(due) {
			next, due = p, at
		}
	}
	return next
}
