package attachments

import (
	"context"
	"sync"
	"time"
)

// quiet is for how long no request has been at work before it is quiet.
const quiet = 50 * time.Millisecond

// Locks mark attachments, by the name of their host end, on which a CNI request or the reconciler is at work, so that
// neither takes apart what the other makes. The zero value is ready to use.
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

// Unlock takes the mark away.
func (l *Locks) Unlock(host string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.hosts, host)
	l.last = time.Now()
}

// quiet reports whether no request has been at work for a while.
func (l *Locks) quiet() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.hosts) == 0 && time.Since(l.last) >= quiet
}

// awaitQuiet waits until it is quiet, for limit at most.
func (l *Locks) awaitQuiet(ctx context.Context, limit time.Duration) {
	for end := time.Now().Add(limit); !l.quiet() && time.Now().Before(end) && ctx.Err() == nil; {
		time.Sleep(quiet / 4)
	}
}
