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

// guard runs beside an Open vSwitch. Its sleep command is the test's: the pause after a start of ovs-vswitchd lasts
// until the test ends it, and all others are short.
type guard struct {
	*ovstest.OVS
	t   *testing.T
	dir string // has the sleep command, "slept" with a line for each call, and "end", which ends a pause
}

// pause is the time that the guard waits for the agent after a start, and poll the time until it sees the start.
const pause, poll = "2.5", "0.5"

func beside(t *testing.T) guard {
	t.Helper()
	g := guard{ovstest.Start(t, ovstest.Options{}), t, t.TempDir()}
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	script := strings.NewReplacer("DIR", g.dir, "SLEEP", sleep, "PAUSE", pause).Replace(`#!/bin/sh
echo "$1" >>DIR/slept
[ "$1" = PAUSE ] || exec SLEEP 0.05
while [ -d DIR ] && ! rm DIR/end 2>/dev/null; do SLEEP 0.02; done
`)
	if err := os.WriteFile(filepath.Join(g.dir, "sleep"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return g
}

func (g guard) start(env ...string) *exec.Cmd {
	g.t.Helper()
	cmd := exec.Command("sh", "-c", Guard)
	cmd.Env = append(os.Environ(), "OVS_RUNDIR="+g.Dir, "PATH="+g.dir+":"+os.Getenv("PATH"))
	cmd.Env = append(cmd.Env, env...)
	cmd.Stdout, cmd.Stderr = g.t.Output(), g.t.Output()
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = cmd.Process.Kill() }) // it may have exited
	return cmd
}

// wait waits for a condition that takes milliseconds on a quiet machine.
func (g guard) wait(what string, done func() bool) {
	g.t.Helper()
	for deadline := time.Now().Add(time.Minute); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			g.t.Fatalf("waited a minute for %s", what)
		}
	}
}

// slept is how many times the guard has begun to sleep for the given time.
func (g guard) slept(how string) (n int) {
	text, err := os.ReadFile(filepath.Join(g.dir, "slept"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		g.t.Fatal(err)
	}
	for _, line := range strings.Fields(string(text)) {
		switch line {
		case how:
			n++
		case poll, pause:
		default:
			g.t.Fatalf("it sleeps %s s: %s and %s make the 3 seconds of its first lines", line, poll, pause)
		}
	}
	return n
}

// paused waits for the n-th pause of the test to begin.
func (g guard) paused(n int) {
	g.t.Helper()
	g.wait("the guard to see the start of ovs-vswitchd", func() bool { return g.slept(pause) >= n })
	if got := g.slept(pause); got != n {
		g.t.Fatalf("it has paused %d times, want %d: one after each start", got, n)
	}
}

// end ends a pause.
func (g guard) end() {
	g.t.Helper()
	if err := os.WriteFile(filepath.Join(g.dir, "end"), nil, 0o600); err != nil {
		g.t.Fatal(err)
	}
}

// config is other_config of the Open_vSwitch row.
func (g guard) config() string {
	return strings.TrimSpace(g.Ctl("get", "Open_vSwitch", ".", "other_config"))
}

// becomes waits until other_config is want.
func (g guard) becomes(want string) {
	g.t.Helper()
	g.wait("other_config "+want, func() bool { return g.config() == want })
}

// is checks other_config.
func (g guard) is(want string) {
	g.t.Helper()
	if got := g.config(); got != want {
		g.t.Fatalf("other_config is %s, want %s", got, want)
	}
}

// stays checks other_config after two more polls of the guard, when it has done all that it will do.
func (g guard) stays(want string) {
	g.t.Helper()
	before := g.slept(poll)
	g.wait("the guard to look", func() bool { return g.slept(poll) >= before+2 })
	g.is(want)
}

// locked reports whether a guard runs, by the same check as the agent's.
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
	g.wait("the lock", func() bool { return g.locked() == want })
}

// A key that is still set after a start is removed after some seconds; one that was set again after the start stays,
// and so does one set externally. The lock is held while the guard runs, and a stopped guard leaves no key.
func TestGuard(t *testing.T) {
	const key = "{flow-restore-wait=True}"
	g := beside(t)
	set := func(args ...string) { g.Ctl(append([]string{"--no-wait", "set", "Open_vSwitch", "."}, args...)...) }
	restart := func() { g.Vswitchd.Kill(); g.Vswitchd.Start() }

	set(ours)
	first := g.start()
	g.becomes("{}") // the first start since boot
	g.untilLocked(true)

	g.paused(1)
	start, err := exec.Command("stat", "-c", "%i.%.9Y", filepath.Join(g.Dir, "ovs-vswitchd.pid")).Output()
	if err != nil {
		t.Fatal(err)
	}
	set(ours, `external_ids:fairlead-restored="`+strings.TrimSpace(string(start))+`"`)
	g.end()
	g.stays(key)

	restart()
	g.paused(2)
	g.is(key)
	g.end()
	g.becomes("{}")

	set("other_config:flow-restore-wait=true")
	restart()
	g.paused(3)
	g.end()
	g.stays(`{flow-restore-wait="true"}`)

	// The key stays when ovs-vswitchd exits normally, for its next start.
	set("other_config:flow-restore-wait=True")
	g.Vswitchd.Signal(syscall.SIGTERM)
	g.wait("ovs-vswitchd to end", func() bool {
		_, err := os.Stat(filepath.Join(g.Dir, "ovs-vswitchd.pid"))
		return os.IsNotExist(err)
	})
	g.Vswitchd.Kill() // it has exited already
	g.stays(key)
	g.Vswitchd.Start()
	g.paused(4)
	g.is(key)
	g.end()
	g.becomes("{}")

	set(ours)
	if err := first.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := first.Wait(); err != nil {
		t.Errorf("a guard after SIGTERM: %v", err)
	}
	g.is("{}")
	g.untilLocked(false)

	// The guard retries if the database is unreachable when ovs-vswitchd starts.
	second := g.start()
	g.untilLocked(true)
	g.paused(5)
	set(ours)
	g.Server.Kill()
	g.end()
	g.paused(6) // the pause of the second try
	g.Server.Start()
	g.is(key)
	g.end()
	g.becomes("{}")
	if err := second.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	g.untilLocked(false)
}

// In a pod with ovs-vswitchd the guard ends with it, and both are restarted together: the key stays for that start.
func TestGuardReturns(t *testing.T) {
	g := beside(t)
	cmd := g.start("FAIRLEAD_GUARD_RETURNS=yes")
	g.untilLocked(true)
	g.paused(1)
	g.end()
	g.stays("{}")
	g.Ctl("--no-wait", "set", "Open_vSwitch", ".", ours)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	g.is("{flow-restore-wait=True}")
	g.Vswitchd.Kill()
	g.start("FAIRLEAD_GUARD_RETURNS=yes")
	g.paused(2) // for the old ovs-vswitchd, whose PID file is there
	g.Vswitchd.Start()
	g.end()
	g.paused(3)
	g.is("{flow-restore-wait=True}")
	g.end()
	g.becomes("{}") // no agent runs
}

// A guard that cannot watch ovs-vswitchd exits, and leaves no key.
func TestGuardThatCannotWatch(t *testing.T) {
	g := beside(t)
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
	g.is("{}")
	g.untilLocked(false)
}
