// Package nstest gives a test network namespaces of its own, with veths between them, functions that run code and
// programs inside, and a cleanup that runs however the test ends.
//
// Namespaces are named fltest-PID-N, so that they can be inspected with "ip netns" while a test runs. Those of a killed
// test process are removed by the next one that creates a namespace.
package nstest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/test/lab/host"
)

// dir is the directory of iproute2's named network namespaces (ip-netns(8)).
const dir = "/run/netns"

// NS is a network namespace that belongs to one test.
type NS struct {
	// Name is that of "ip netns"; Path is the namespace's file.
	Name, Path string

	t testing.TB
}

// serial numbers the namespaces of this process.
var serial atomic.Int64

// Need skips the test, with the reason, where namespaces cannot be created.
func Need(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED, NOTHING WAS TESTED: needs root to make network namespaces")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("SKIPPED, NOTHING WAS TESTED: needs iproute2 (ip) to make network namespaces")
	}
}

// New creates a network namespace with lo up. It is removed when the test ends. Call it from the test's own goroutine.
func New(t testing.TB) *NS {
	t.Helper()
	Need(t)
	sweep(t)
	name := fmt.Sprintf("fltest-%d-%d", os.Getpid(), serial.Add(1))
	ip(t, "netns", "add", name)
	n := &NS{Name: name, Path: filepath.Join(dir, name), t: t}
	t.Cleanup(func() { ip(t, "netns", "del", name) })
	n.Exec("ip", "link", "set", "lo", "up")
	return n
}

// Do runs f on a thread inside the namespace and returns its error. The thread ends with f. f runs on another goroutine
// than the test, so it must not call t.Fatal, and goroutines that it starts run outside of the namespace.
func (n *NS) Do(f func() error) error {
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the runtime terminates the thread with the goroutine, so no other goroutine can run in the
		// namespace.
		runtime.LockOSThread()
		done <- n.enter(f)
	}()
	return <-done
}

func (n *NS) enter(f func() error) error {
	fd, err := unix.Open(n.Path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening %s: %w", n.Path, err)
	}
	defer unix.Close(fd)
	if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("entering %s: %w", n.Path, err)
	}
	return f()
}

// Must is Do that fails the test on an error.
func (n *NS) Must(f func() error) {
	n.t.Helper()
	if err := n.Do(f); err != nil {
		n.t.Fatal(err)
	}
}

// Run runs a program inside the namespace and returns its output. It is killed after 20 seconds. nsenter is used
// because "ip netns exec" creates a mount namespace as well.
func (n *NS) Run(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	argv := append([]string{"--net=" + n.Path, "--"}, args...)
	cmd := exec.CommandContext(ctx, "nsenter", argv...)
	out := host.Collect(cmd, args[0])
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("%s in %s: %w: %s", strings.Join(args, " "), n.Name, err, out.Text(err))
	}
	return out.Text(err), err
}

// Exec is Run that fails the test on an error.
func (n *NS) Exec(args ...string) string {
	n.t.Helper()
	out, err := n.Run(args...)
	if err != nil {
		n.t.Fatal(err)
	}
	return out
}

// IP runs ip(8) with the words of line inside the namespace.
func (n *NS) IP(line string) string {
	n.t.Helper()
	return n.Exec(append([]string{"ip"}, strings.Fields(line)...)...)
}

// Veth creates a veth between two namespaces, both ends up. Frames pass when it returns.
func Veth(a *NS, aName string, b *NS, bName string) {
	a.t.Helper()
	a.IP(fmt.Sprintf("link add %s type veth peer name %s netns %s", aName, bName, b.Name))
	a.IP("link set " + aName + " up")
	b.IP("link set " + bName + " up")
	// The end that was up first drops all frames until the kernel has processed the event that the other is up.
	Wait(a.t, time.Minute, aName+" to be up after its peer", func() bool {
		return strings.Contains(a.IP("link show "+aName), "state UP")
	})
}

func ip(t testing.TB, args ...string) {
	t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// sweep removes the namespaces of test processes that are dead.
func sweep(t testing.TB) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // no namespace exists yet
	}
	ours := regexp.MustCompile(`^fltest-(\d+)-\d+$`)
	for _, e := range entries {
		m := ours.FindStringSubmatch(e.Name())
		if m == nil {
			continue
		}
		pid, _ := strconv.Atoi(m[1])
		if !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			continue
		}
		// Another test process may be sweeping too: it is enough that the namespace is gone.
		if err := exec.Command("ip", "netns", "del", e.Name()).Run(); err == nil {
			t.Logf("removed %s, left by a test process that died", e.Name())
		}
	}
}

// Wait fails the test if done does not become true within limit; what is the awaited condition. done is called every 10
// milliseconds.
func Wait(t testing.TB, limit time.Duration, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v for %s", limit, what)
		}
	}
}
