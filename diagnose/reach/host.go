package reach

import "time"

// Host is what is known of a node's own address, which is asked when a path of its pods fails.
type Host struct {
	// answered is since when it has answered each time, silent when it last did not.
	answered, silent time.Time
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
