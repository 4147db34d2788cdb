package ovs

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/test/ovstest"
)

const ours = "other_config:flow-restore-wait=True"

// guard is one that runs beside an Open vSwitch.
type guard struct {
	*ovstest.OVS
	t *testing.T
}

func (g guard) start(env ...string) *exec.Cmd {
	g.t.Helper()
	cmd := exec.Command("sh", "-c", Guard)
	cmd.Env = append(os.Environ(), append(env, "OVS_RUNDIR="+g.Dir)...)
	cmd.Stdout, cmd.Stderr = g.t.Output(), g.t.Output()
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = cmd.Process.Kill() }) // it may have exited
	return cmd
}

func (g guard) config() string {
	return strings.TrimSpace(g.Ctl("get", "Open_vSwitch", ".", "other_config"))
}

// until waits until other_config is want.
func (g guard) until(limit time.Duration, want string) {
	g.t.Helper()
	for start := time.Now(); g.config() != want; time.Sleep(50 * time.Millisecond) {
		if time.Since(start) > limit {
			g.t.Fatalf("other_config is %s after %s, want %s", g.config(), limit, want)
		}
	}
}

// stays checks for longer than the guard takes to act.
func (g guard) stays(want string) {
	g.t.Helper()
	for start := time.Now(); time.Since(start) < 4*time.Second; time.Sleep(100 * time.Millisecond) {
		if got := g.config(); got != want {
			g.t.Fatalf("other_config has become %s, want %s", got, want)
		}
	}
}

// locked reports whether a guard runs, in the way the agent checks it.
func (g guard) locked() bool {
	f, err := os.Open(filepath.Join(g.Dir, "fairlead-guard.lock"))
	if err != nil {
		return false
	}
	defer f.Close()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) != nil
}

func (g guard) untilLocked(want bool) {
	g.t.Helper()
	for start := time.Now(); g.locked() != want; time.Sleep(20 * time.Millisecond) {
		if time.Since(start) > 3*time.Second {
			g.t.Fatalf("locked is %v", !want)
		}
	}
}

// A key that is not removed after a start is removed after some seconds; one that was set again after it stays, and so
// does one set externally. The lock is held while the guard runs, and a guard that is stopped leaves no key.
func TestGuard(t *testing.T) {
	const key = "{flow-restore-wait=True}"
	g := guard{ovstest.Start(t, ovstest.Options{}), t}
	set := func(args ...string) { g.Ctl(append([]string{"--no-wait", "set", "Open_vSwitch", "."}, args...)...) }

	set(ours)
	first := g.start()
	g.until(3*time.Second, "{}") // the first start since boot
	g.untilLocked(true)

	start, err := exec.Command("stat", "-c", "%i.%.9Y", filepath.Join(g.Dir, "ovs-vswitchd.pid")).Output()
	if err != nil {
		t.Fatal(err)
	}
	set(ours, `external_ids:fairlead-restored="`+strings.TrimSpace(string(start))+`"`)
	g.stays(key)

	g.Vswitchd.Kill()
	g.Vswitchd.Start()
	if got := g.config(); got != key {
		t.Errorf("other_config is %s at once after the start", got)
	}
	g.until(6*time.Second, "{}")

	set("other_config:flow-restore-wait=true")
	g.Vswitchd.Kill()
	g.Vswitchd.Start()
	g.stays(`{flow-restore-wait="true"}`)

	// It stays when ovs-vswitchd exits regularly, for its next start.
	set("other_config:flow-restore-wait=True")
	g.Vswitchd.Signal(syscall.SIGTERM)
	pid := filepath.Join(g.Dir, "ovs-vswitchd.pid")
	for start := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(pid); os.IsNotExist(err) {
			break
		}
		if time.Since(start) > 5*time.Second {
			t.Fatal("ovs-vswitchd does not end")
		}
	}
	g.Vswitchd.Kill() // it has exited
	g.stays(key)
	g.Vswitchd.Start()
	g.until(6*time.Second, "{}")

	set(ours)
	if err := first.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := first.Wait(); err != nil {
		t.Errorf("a guard after SIGTERM: %v", err)
	}
	g.until(0, "{}")
	g.untilLocked(false)

	// A database that is unreachable when ovs-vswitchd starts is read again.
	second := g.start()
	g.untilLocked(true)
	set(ours)
	g.Server.Kill()
	g.Vswitchd.Kill()
	g.Server.Start()
	g.Vswitchd.Start()
	g.until(8*time.Second, "{}")
	if err := second.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	g.untilLocked(false)
}

// In a pod with ovs-vswitchd the guard ends with it, and both are restarted together: the key stays for that start.
func TestGuardReturns(t *testing.T) {
	g := guard{ovstest.Start(t, ovstest.Options{}), t}
	cmd := g.start("FAIRLEAD_GUARD_RETURNS=yes")
	g.untilLocked(true)
	g.Ctl("--no-wait", "set", "Open_vSwitch", ".", ours)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if got := g.config(); got != "{flow-restore-wait=True}" {
		t.Errorf("other_config is %s", got)
	}
	g.Vswitchd.Kill()
	g.start("FAIRLEAD_GUARD_RETURNS=yes")
	g.Vswitchd.Start()
	g.until(8*time.Second, "{}") // no agent runs
}

// A guard that cannot watch ovs-vswitchd exits, and leaves no key.
func TestGuardThatCannotWatch(t *testing.T) {
	g := guard{ovstest.Start(t, ovstest.Options{}), t}
	dir := t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "ln"), []byte("#!/bin/sh\nexit 1\n"), 0o755),
		os.WriteFile(filepath.Join(g.Dir, "fairlead-guard.lock"), nil, 0o600)); err != nil { // not the first start
		t.Fatal(err)
	}
	g.Ctl("--no-wait", "set", "Open_vSwitch", ".", ours)
	cmd := g.start("PATH=" + dir + ":" + os.Getenv("PATH"))
	if err := cmd.Wait(); err == nil {
		t.Error("it ended without an error")
	}
	g.until(0, "{}")
	g.untilLocked(false)
}
