package labtest

import (
	"context"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// guestSlower is the factor for time limits in User-Mode Linux: a system call takes up to 100 times as long there, and
// agent, Open vSwitch and test share one CPU.
const guestSlower = 6

// leastLimit is what any operation may need on a busy machine, where a process may not be scheduled for seconds.
const leastLimit = time.Minute

// Limit is the time limit for an expected event that takes d on an idle machine. It is generous: waiting ends when the
// event occurs, and the limit itself tests nothing.
func Limit(d time.Duration) time.Duration { return max(d, leastLimit) }

// Within is a context that ends after d, or later on a busy machine (Limit) or in a guest (Patience), for calls that
// must not hang.
func Within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Limit(Patience(t, d)))
	t.Cleanup(cancel)
	return ctx
}

// Patience is the time limit for an operation that takes at most d. It is longer where tests run on the kernel's
// datapath, which is mostly in User-Mode Linux.
func Patience(t testing.TB, d time.Duration) time.Duration {
	t.Helper()
	if ovstest.UnderTest(t) == ovstest.System {
		return guestSlower * d
	}
	return d
}
