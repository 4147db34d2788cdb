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

// Within is a context that ends after d, or later in a guest (Patience), for calls that must not hang.
func Within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience(t, d))
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
