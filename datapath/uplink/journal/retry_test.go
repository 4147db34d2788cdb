package journal

import (
	"testing"
	"time"
)

// Each wait after a rolled back attach is twice as long as the previous one, up to a limit, until an attach has lasted
// long enough.
func TestWaitsDouble(t *testing.T) {
	const first = time.Minute
	j := &Journal{}
	for try, want := range []time.Duration{1, 2, 4, 8, 16, 32, 64, 64} {
		Postpone(j, first)
		if left := time.Until(j.RetryAt).Round(time.Second); left != want*first || j.Tries != try+1 {
			t.Errorf("after try %d, of %d: %s, want %s", try+1, j.Tries, left, want*first)
		}
		if j.RetryDue(first) {
			t.Errorf("after try %d the next is due at once", try+1)
		}
	}
	for _, due := range []time.Duration{-time.Second, 65 * first} { // the latter: the clock was set back
		j.RetryAt = time.Now().Add(due)
		if !j.RetryDue(first) {
			t.Errorf("%s from now: not due", due)
		}
	}
	j.RetryAt = time.Now().Add(-stableAfter - time.Minute)
	if Postpone(j, first); j.Tries != 1 {
		t.Errorf("after a long time it is try %d", j.Tries)
	}
}
