// Package signal wakes a goroutine up: that something has changed, not what, so that any number of changes are one
// signal until it is received.
package signal

// Signal is received from like any channel.
type Signal chan struct{}

// New returns a Signal that nobody has notified.
func New() Signal { return make(Signal, 1) }

// Notify never waits: who is behind learns of all that has happened by one signal.
func (s Signal) Notify() {
	select {
	case s <- struct{}{}:
	default:
	}
}
