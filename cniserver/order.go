package cniserver

import (
	"context"
	"sync"
)

// order determines the order of calls: each call of an attachment waits for the one before it, a GC for all calls
// before it, and all calls after it for the GC.
type order struct {
	mu   sync.Mutex
	last map[AttachmentID]signal // the last call of each attachment
	gc   signal                  // the last GC, or nil
}

// signal is closed when a call is over.
type signal chan struct{}

// turn is a place in the order.
type turn struct {
	over signal
	// waitFor is what t waits for. A later turn relies on t having waited for inherited, which is a subset of waitFor.
	waitFor, inherited []signal
	forget             func() // with order.mu held
}

// attachment appends a call of id.
func (o *order) attachment(id AttachmentID) *turn {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.last == nil {
		o.last = map[AttachmentID]signal{}
	}
	t := &turn{over: make(signal), waitFor: some(o.last[id], o.gc)}
	t.inherited = t.waitFor
	o.last[id] = t.over
	t.forget = func() {
		if o.last[id] == t.over {
			delete(o.last, id)
		}
	}
	return t
}

// all appends a GC. A GC that gives up waiting does not make later calls wait for those it waited for, except for an
// earlier GC.
func (o *order) all() *turn {
	o.mu.Lock()
	defer o.mu.Unlock()
	t := &turn{over: make(signal), inherited: some(o.gc)}
	t.waitFor = t.inherited
	for _, s := range o.last {
		t.waitFor = append(t.waitFor, s)
	}
	o.gc = t.over
	t.forget = func() {
		if o.gc == t.over {
			o.gc = nil
		}
	}
	return t
}

func some(signals ...signal) []signal {
	var out []signal
	for _, s := range signals {
		if s != nil {
			out = append(out, s)
		}
	}
	return out
}

// wait returns nil when it is t's turn, or the cause of ctx's end.
func (t *turn) wait(ctx context.Context) error {
	for _, s := range t.waitFor {
		select {
		case <-s:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// leave ends t's turn, whether or not it had begun.
func (o *order) leave(t *turn) {
	if t.inheritedDone() {
		o.pass(t)
		return
	}
	go func() {
		for _, s := range t.inherited {
			<-s
		}
		o.pass(t)
	}()
}

func (t *turn) inheritedDone() bool {
	for _, s := range t.inherited {
		select {
		case <-s:
		default:
			return false
		}
	}
	return true
}

func (o *order) pass(t *turn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(t.over)
	t.forget()
}
