// Package signal wakes up a goroutine. A signal says that something has changed, not what, so any number of changes are
// one signal until it is received.
package signal

import (
	"context"
	"time"
)

// Signal is received from like any channel.
type Signal chan struct{}

// New returns a Signal that has not been notified.
func New() Signal { return make(Signal, 1) }

// Notify never waits: a slow receiver gets one signal for all changes.
func (s Signal) Notify() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// Loop calls work once per interval, and whenever wake receives (nil: never), until ctx ends.
func Loop(ctx context.Context, interval time.Duration, wake <-chan struct{}, work func(context.Context)) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-wake:
		}
		work(ctx)
	}
}
