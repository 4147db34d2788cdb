package probe

import (
	"fmt"
	"os"
	"time"
)

// stall is longer than any gap in the answers on a machine that has time to forward them.
const stall = 50 * time.Millisecond

// Excused reports whether controls, which the event under test cannot affect, show that the machine may have lost what
// the streams lost: they lost some as well, or stalled for half as long as the worst of the streams, and long enough
// for queues to overflow afterwards. Which of several streams then loses packets is chance.
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

// Starved watches processes until stop is called, which returns the longest time that the main thread of one of them
// was ready to run and did not run (Documentation/scheduler/sched-stats.rst of Linux) within any period as long as
// within. Many short waits lose no packets, unlike a long one: the sockets of Open vSwitch's ports buffer some.
func Starved(within time.Duration, pids ...int) (stop func() (longest time.Duration)) {
	const looks = 10
	var longest time.Duration
	past := make([][]time.Duration, len(pids))
	look := func() {
		for i, pid := range pids {
			var ran, waited time.Duration // both are in nanoseconds
			data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
			if _, err := fmt.Sscan(string(data), &ran, &waited); err != nil {
				continue // the process has ended
			}
			past[i] = append(past[i], waited)
			past[i] = past[i][max(0, len(past[i])-looks-1):]
			longest = max(longest, waited-past[i][0])
		}
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for look(); ; look() {
			select {
			case <-done:
				look()
				return
			case <-time.After(within / looks):
			}
		}
	}()
	return func() time.Duration { close(done); <-ended; return longest }
}
