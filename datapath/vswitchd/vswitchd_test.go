package vswitchd

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/ovstest"
)

func startID(t *testing.T, runDir string) string {
	t.Helper()
	id, err := StartID(runDir)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// The guard's shell function and StartID return the same text; otherwise the guard would never match what the agent has
// recorded.
func TestGuardAgrees(t *testing.T) {
	guard, err := os.ReadFile("../../build/ovs/fairlead-ovs-guard")
	if err != nil {
		t.Fatal(err)
	}
	var function string
	for line := range strings.Lines(string(guard)) {
		if strings.HasPrefix(line, "start() ") {
			function = line
		}
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "ovs-vswitchd.pid")
	for _, nsec := range []int64{0, 1, 120_000_000, 999_999_999} {
		at := time.Unix(1_700_000_000, nsec)
		if err := os.WriteFile(file, []byte("1\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, at, at); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("sh", "-c", function+"start")
		cmd.Env = append(os.Environ(), "seen="+file)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", function, err)
		}
		if got, want := strings.TrimSpace(string(out)), startID(t, dir); got != want {
			t.Errorf("the guard says %q, the agent %q", got, want)
		}
	}
}

// Two starts within one second differ, even if the second PID file gets the inode of the first.
func TestStartsInOneSecondDiffer(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "ovs-vswitchd.pid")
	if id := startID(t, dir); id != "" {
		t.Errorf("without a PID file: %q", id)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ids := map[string]bool{}
	for _, nsec := range []int64{100, 200, 1_000_000} {
		at := time.Unix(1_700_000_000, nsec)
		if err := os.Chtimes(file, at, at); err != nil {
			t.Fatal(err)
		}
		ids[startID(t, dir)] = true
	}
	if len(ids) != 3 {
		t.Errorf("three starts have the identities %v", ids)
	}
}

// A crash leaves the PID file: the start is still known, but not running.
func TestRunning(t *testing.T) {
	o := ovstest.Start(t, ovstest.Options{})
	first := startID(t, o.Dir)
	if !Running(o.Dir) || first == "" || RunningStartID(o.Dir) != first {
		t.Fatalf("one runs: Running %v, StartID %q, RunningStartID %q", Running(o.Dir), first, RunningStartID(o.Dir))
	}
	o.Vswitchd.Kill()
	if Running(o.Dir) || RunningStartID(o.Dir) != "" || startID(t, o.Dir) != first {
		t.Errorf("killed: Running %v, StartID %q, was %q", Running(o.Dir), startID(t, o.Dir), first)
	}
	o.Vswitchd.Start()
	if second := RunningStartID(o.Dir); second == "" || second == first {
		t.Errorf("the second start is %q, the first was %q", second, first)
	}
	if Running(t.TempDir()) {
		t.Error("one runs without a PID file")
	}
}

// A stopped ovs-vswitchd hangs until it continues; one that is dead, or has its socket elsewhere, does not count as
// hanging.
func TestHangs(t *testing.T) {
	o := ovstest.Start(t, ovstest.Options{})
	hangs := func(want bool, when string) {
		t.Helper()
		if Hangs(t.Context(), o.Dir) != want {
			t.Errorf("%s: it is %t that it hangs", when, !want)
		}
	}
	o.Vswitchd.Signal(syscall.SIGSTOP)
	hangs(false, "no socket where nodes have it")
	o.NameSocket()
	hangs(true, "stopped")
	o.Vswitchd.Signal(syscall.SIGCONT)
	hangs(false, "continued")
	o.Vswitchd.Kill()
	hangs(false, "killed")
}

// A run directory in which no ovs-vswitchd answers is an error, and so is an unknown command.
func TestTrace(t *testing.T) {
	o := ovstest.Start(t, ovstest.Options{})
	o.AddBridge("br-int", ovstest.Port{Name: "pod-a", OFPort: 3}, ovstest.Port{Name: "pod-b", OFPort: 4})
	o.Ofctl("add-flow", "br-int", "in_port=3,actions=4")
	if _, err := Trace(t.Context(), o.Dir, "br-int", "in_port=pod-a"); err == nil {
		t.Error("there is no socket, and no error")
	}
	o.NameSocket()
	if _, err := Appctl(t.Context(), o.Dir, "no/such-command"); err == nil || !strings.Contains(err.Error(), "no/such-command") {
		t.Errorf("a command that is unknown: %v", err)
	}
	if text, err := Trace(t.Context(), o.Dir, "br-int", "in_port=pod-a"); err != nil || !strings.Contains(text, `output:"pod-b"`) {
		t.Errorf("Trace: %q, %v", text, err)
	}
	if _, err := Appctl(t.Context(), t.TempDir(), "revalidator/wait"); err == nil {
		t.Error("there is no ovs-vswitchd, and no error")
	}
}
