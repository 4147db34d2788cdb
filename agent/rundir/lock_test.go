package rundir

import (
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The agent before may still be on its way out; one that stays is told of.
func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "agent.lock")
	unlock, err := lock(t.Context(), path, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock(t.Context(), path, 0); err == nil || !strings.Contains(err.Error(), path+" is locked") {
		t.Errorf("a second lock: %v", err)
	}
	go func() {
		time.Sleep(50 * time.Millisecond) // the first agent ends while the second waits
		unlock()
	}()
	second, err := lock(t.Context(), path, 10*time.Second)
	if err != nil {
		t.Fatalf("a lock that was let go of: %v", err)
	}
	second()
}
