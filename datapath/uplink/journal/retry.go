package journal

import "time"

const (
	// maxDoublings bounds the wait before another attach: 64 times the first.
	maxDoublings = 6
	// stableAfter is how long an uplink must work before its earlier failures no longer count.
	stableAfter = time.Hour
)

// StartRestore makes a journal lead back for that reason, which replaces any other and its consequences.
func StartRestore(j *Journal, reason string) {
	j.Phase, j.Reason, j.Unreached, j.Failed, j.Yielded = Restoring, reason, false, false, ""
}

// Postpone notes one more failure, and when the next attach may be. first is the wait after one failure; it doubles.
func Postpone(j *Journal, first time.Duration) {
	if time.Since(j.RetryAt) > stableAfter {
		j.Tries = 0
	}
	j.RetryAt = time.Now().Add(first << min(j.Tries, maxDoublings))
	j.Tries++
}

// RetryDue reports whether the NIC may be attached again as far as Postpone says. A time further away than any wait
// means that the clock was changed.
func (j Journal) RetryDue(first time.Duration) bool {
	wait := time.Until(j.RetryAt)
	return wait <= 0 || wait > first<<maxDoublings
}
