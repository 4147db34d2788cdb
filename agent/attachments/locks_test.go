package attachments

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// Waiting for quiet ends once no request has been in progress for a while, at the limit if there always is one, or when
// the agent stops.
func TestAwaitQuiet(t *testing.T) {
	const limit = time.Second
	for what, c := range map[string]struct {
		busy     time.Duration // duration of a request in progress
		ends     bool          // the agent stops
		from, to time.Duration
	}{
		"no request":          {0, false, 0, 0},
		"a request ends":      {limit / 4, false, limit/4 + quiet, limit/4 + 2*quiet},
		"a request goes on":   {2 * limit, false, limit, limit + quiet},
		"the agent ends then": {limit / 2, true, 0, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			var l Locks
			if c.busy > 0 {
				l.TryLock("fl1")
				time.AfterFunc(c.busy, func() { l.Unlock("fl1") })
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if c.ends {
				cancel()
			}
			began := time.Now() // virtual time
			l.awaitQuiet(ctx, limit)
			if took := time.Since(began); took < c.from || took > c.to {
				t.Errorf("%s: it waits for %s, want %s to %s", what, took, c.from, c.to)
			}
			time.Sleep(c.busy)
		})
	}
}
