package reach

import "time"

// Reports is what others report about a peer that is not heard here: they hear it, so its agent runs. A false answer,
// which only another node could give, at most shortens a wait: only a path that fails is reported.
type Reports struct {
	by          string
	first, last time.Time // when the peer was heard elsewhere, without a break as long as Silence
}

// Add records that by has heard the peer at a time. What was heard before the silence here proves nothing, nor what
// was heard as it began: the peer sends to one end after the other.
func (r *Reports) Add(l *Link, by string, at time.Time) {
	if at.Sub(l.Since()) <= l.pace() {
		return
	}
	if r.first.Before(l.Since()) || at.Sub(r.last) > l.Silence() {
		r.first = at
	}
	if at.After(r.last) {
		r.by, r.last = by, at
	}
}

// HeardBy names a node that hears the peer, and has heard it for as long as it takes to find a path broken: a peer
// whose agent has just started has not sent to all others yet. It is empty if no node does, or has recently.
func (r *Reports) HeardBy(l *Link, now time.Time) (by string) {
	if r.first.Before(l.Since()) || r.last.Sub(r.first) < l.Silence() || now.Sub(r.last) > l.Silence() {
		return ""
	}
	return r.by
}

// Since is when the silence began: when the peer was last heard, or this end began to observe.
func (l *Link) Since() time.Time {
	if l.began.After(l.heard) {
		return l.began
	}
	return l.heard
}
