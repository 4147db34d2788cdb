package reach

import (
	"time"

	pure "github.com/fairlead-cni/fairlead/diagnose/reach"
)

// maxTurns is how many packets a path gets at most for each packet of another, while it is not known whether it works.
const maxTurns = 3

// setPaces sets how often each path gets a packet: all equally often, at most once per Interval. If there are too many
// paths for that, those not known to work or fail get more.
func (t *session) setPaces(now time.Time) {
	urgent := map[path]bool{}
	for _, p := range t.queue {
		if t.peers[p].Undecided(now) || t.peers[p].pending(now) {
			urgent[p] = true
		}
	}
	times, usual := 1, len(t.queue)-len(urgent)
	for times < maxTurns && usual+(times+1)*len(urgent) >= (times+1)*maxSent {
		times++
	}
	turns := usual + times*len(urgent)
	t.step = max(t.Interval/maxSent, t.Interval/time.Duration(max(1, turns)))
	for _, p := range t.queue {
		t.peers[p].Interval = t.step * time.Duration(turns)
		if urgent[p] {
			t.peers[p].Interval /= time.Duration(times)
		}
	}
}

// pending reports whether a direction seems to fail, but that is not reported yet, or the peer is heard, but it is not
// known whether this end is heard.
func (p *peer) pending(now time.Time) bool {
	s := p.State(now)
	return !p.verdict.Broken && (s.Doubtful() || s.From == pure.Works && s.To == pure.Unknown)
}

// nextPath is the path that has waited longest for a packet, by its pace; there must be one.
func (t *session) nextPath() (next path) {
	var due time.Time
	for i, p := range t.queue {
		if at := t.peers[p].Due(); i == 0 || at.Before(due) {
			next, due = p, at
		}
	}
	return next
}
