package reach

import "time"

// Host is what is known of a node's own address, which is asked when a path of its pods fails.
type Host struct {
	// answered is since when it has answered each time, silent when it last did not.
	answered, silent time.Time
	// notReady is when the API server last had the node as not ready.
	notReady time.Time
}

// Seen takes in whether the API server has the node as not ready.
func (h *Host) Seen(notReady bool, now time.Time) {
	if notReady {
		h.notReady = now
	}
}

// Silent is for how long the silence of the path may count against it: a node that comes back is ready, by the API
// server's word, before all of its addresses answer.
func (h *Host) Silent(l *Link, now time.Time) time.Duration {
	return min(l.Silent(now), now.Sub(h.notReady))
}

// Asked takes in an answer.
func (h *Host) Asked(a Answer, now time.Time) {
	switch {
	case a == NotHeard:
		h.silent, h.answered = now, time.Time{}
	case a == Answered && h.answered.IsZero():
		h.answered = now
	}
}

// Settled reports whether the node's agent should run: it was heard and its node did not fail since, as far as this
// end has observed, or its node has answered for grace.
func (h *Host) Settled(l *Link, grace time.Duration, now time.Time) bool {
	return l.heard.After(l.began) && h.silent.Before(l.heard) || !h.answered.IsZero() && now.Sub(h.answered) >= grace
}
