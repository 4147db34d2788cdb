package link

import (
	"fmt"
	"os"
	"testing"
)

// A dry run names the existing network namespace, and keeps it.
func TestRootRemoveNetns(t *testing.T) {
	name := fmt.Sprint("fairlead-test-", os.Getpid())
	if _, err := EnsureNetns(name); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ dryRun, was bool }{{true, true}, {true, true}, {false, true}, {false, false},
		{true, false}} {
		if removed, err := RemoveNetns(name, c.dryRun); err != nil || removed != c.was {
			t.Errorf("dry run %v: %v, %v, want %v", c.dryRun, removed, err, c.was)
		}
	}
}
