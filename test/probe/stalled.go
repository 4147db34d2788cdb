package probe

import "time"

// stall is longer than any gap in the answers on a machine that has time for what forwards them.
const stall = 50 * time.Millisecond

// Excused reports whether controls, which what happened cannot touch, show that the machine may have lost what the
// streams lost: they lost some as well, or stood still for half as long as the worst of the streams, and long enough
// for queues to overflow when it went on. Which stream of several loses then is chance.
func Excused(streams, controls []Report) bool {
	var longest, control time.Duration
	for _, r := range streams {
		longest = max(longest, r.LongestGap)
	}
	for _, r := range controls {
		if r.Lost > 0 {
			return true
		}
		control = max(control, r.LongestGap)
	}
	return control >= stall && control >= longest/2
}
