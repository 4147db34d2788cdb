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

// leastLimit is what a busy machine may need for anything: there a process gets no processor for seconds at a time.
const leastLimit = time.Minute

// Limit is the time limit for what has to come, and takes d on an idle machine. It is generous, since it costs nothing
// where that comes, and proves nothing.
func Limit(d time.Duration) time.Duration { return max(d, leastLimit) }

// Within is a context that ends after d, or later on a busy machine (Limit) or in a guest (Patience), for calls that
// must not hang.
func Within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Limit(Patience(t, d)))
	t.Cleanup(cancel)
	return ctx
}

// Patience is the time limit for what takes at most d: longer where the tests run on the kernel's datapath, as that is
// mostly in User-Mode Linux.
func Patience(t testing.TB, d time.Duration) time.Duration {
	t.Helper()
	if ovstest.UnderTest(t) == ovstest.System {
		return guestSlower * d
	}
	return d
}
