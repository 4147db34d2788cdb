package reach

import "time"

// Host is what is known about a node's own address, which is pinged when a path of its pods fails.
type Host struct {
	// answered is since when it has answered every time, silent when it last did not.
	answered, silent time.Time
	// notReady is when the API server last reported the node as not ready.
	notReady time.Time
}

// SetNotReady records whether the API server reports the node as not ready.
func (h *Host) SetNotReady(notReady bool, now time.Time) {
	if notReady {
		h.notReady = now
	}
}

// Silent is for how long the silence of the path may count against it: after an outage the API server reports a node as
// ready before all of its addresses answer.
func (h *Host) Silent(l *Link, now time.Time) time.Duration {
	return min(l.Silent(now), now.Sub(h.notReady))
}

// Pinged records the outcome of a ping.
func (h *Host) Pinged(a Answer, now time.Time) {
	switch {
	case a == NoReply:
		h.silent, h.answered = now, time.Time{}
	case a == Answered && h.answered.IsZero():
		h.answered = now
	}
}

// Settled reports whether the node's agent should run: it was heard and its node has not failed since, as far as this
// end has observed, or its node has answered for grace.
func (h *Host) Settled(l *Link, grace time.Duration, now time.Time) bool {
	return l.heard.After(l.began) && h.silent.Before(l.heard) || !h.answered.IsZero() && now.Sub(h.answered) >= grace
}
