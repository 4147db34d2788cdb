package chaos

import (
	"os"
	"slices"
	"testing"
	"time"
)

func TestSeeds(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("SEED", "")
	if got := Seeds(t); len(got) != 0 || OneSeed() {
		t.Errorf("without a file: %v", got)
	}
	if err := os.Mkdir("testdata", 0o755); err != nil {
		t.Fatal(err)
	}
	lines := "TestSeeds 12, lost an address\nTestOther 13, x\nTestSeeds 14, y\n"
	if err := os.WriteFile(stored, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := Seeds(t); !slices.Equal(got, []uint64{12, 14}) {
		t.Errorf("stored are %v, want 12 and 14", got)
	}
	t.Setenv("SEED", "7")
	if got := Seeds(t); !slices.Equal(got, []uint64{7}) || !OneSeed() {
		t.Errorf("got %v, want the one that is asked for", got)
	}
}

func TestTime(t *testing.T) {
	t.Setenv("FAIRLEAD_TEST_CHAOS", "")
	if got := Time(t, time.Second); got != time.Second {
		t.Errorf("got %s, want the share", got)
	}
	t.Setenv("FAIRLEAD_TEST_CHAOS", "10m")
	if got := Time(t, time.Second); got != 10*time.Minute {
		t.Errorf("got %s, want 10m", got)
	}
}
