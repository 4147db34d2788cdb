// Package signal wakes a goroutine up: that something has changed, not what, so that any number of changes are one
// signal until it is received.
package signal

import (
	"context"
	"time"
)

// Signal is received from like any channel.
type Signal chan struct{}

// New returns a Signal that was not notified yet.
func New() Signal { return make(Signal, 1) }

// Notify never waits: who is behind learns of all that has happened by one signal.
func (s Signal) Notify() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// Loop calls work in every interval, and whenever wake receives (nil: never), until ctx ends.
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
