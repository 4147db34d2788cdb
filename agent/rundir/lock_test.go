package rundir

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The previous agent may still be stopping; one that keeps running is reported.
func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "agent.lock")
	unlock, err := lock(t.Context(), path, 0)
	if err != nil {
		t.Fatal(err)
	}
	if !locked(path) || locked(path+"x") {
		t.Error("whether an agent runs")
	}
	if _, err := lock(t.Context(), path, 0); err == nil || !strings.Contains(err.Error(), path+" is locked") {
		t.Errorf("a second lock: %v", err)
	}
	go func() {
		time.Sleep(50 * time.Millisecond) // the first agent ends while the second waits
		unlock()
	}()
	second, err := lock(t.Context(), path, time.Minute)
	if err != nil {
		t.Fatalf("a lock that was let go of: %v", err)
	}
	second()
	if locked(path) {
		t.Error("locked after the end of it")
	}
}

// "fairlead-agent uninstall" removes the file that it has locked. A process that waited for that lock does not hold the
// node's lock then.
func TestLockOfARemovedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "agent.lock")
	unlock, err := lock(t.Context(), path, 0)
	if err != nil {
		t.Fatal(err)
	}
	type result struct {
		unlock func()
		err    error
	}
	waiting := make(chan result)
	go func() {
		unlock, err := lock(t.Context(), path, time.Minute)
		waiting <- result{unlock, err}
	}()
	for deadline := time.Now().Add(time.Minute); opened(t, path) < 2; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the second does not wait for the lock")
		}
	}
	if err := os.RemoveAll(filepath.Dir(path)); err != nil {
		t.Fatal(err)
	}
	unlock()
	second := <-waiting
	if second.err != nil {
		t.Fatal(second.err)
	}
	defer second.unlock()
	if third, err := lock(t.Context(), path, 0); err == nil {
		third()
		t.Error("two have the lock of one node")
	}
}

// opened is the number of this process's file descriptors of the file.
func opened(t *testing.T, path string) (n int) {
	t.Helper()
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && to == path {
			n++
		}
	}
	return n
}
