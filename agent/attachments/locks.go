package attachments

import (
	"context"
	"sync"
	"time"
)

// quiet is how long no request must have been in progress for the node to count as quiet.
const quiet = 50 * time.Millisecond

// Locks mark attachments, by the name of their host end, on which a CNI request or the reconciler is working, so that
// neither removes what the other creates. The zero value is ready to use.
type Locks struct {
	mu    sync.Mutex
	hosts map[string]bool
	last  time.Time // of the last Unlock
}

// TryLock marks host and returns true, or returns false when it is marked.
func (l *Locks) TryLock(host string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hosts[host] {
		return false
	}
	if l.hosts == nil {
		l.hosts = map[string]bool{}
	}
	l.hosts[host] = true
	return true
}

// Unlock removes the mark.
func (l *Locks) Unlock(host string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.hosts, host)
	l.last = time.Now()
}

// quiet reports whether no request has been in progress for a while.
func (l *Locks) quiet() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.hosts) == 0 && time.Since(l.last) >= quiet
}

// awaitQuiet waits until it is quiet, at most for limit.
func (l *Locks) awaitQuiet(ctx context.Context, limit time.Duration) {
	for end := time.Now().Add(limit); !l.quiet() && time.Now().Before(end) && ctx.Err() == nil; {
		time.Sleep(quiet / 4)
	}
}
