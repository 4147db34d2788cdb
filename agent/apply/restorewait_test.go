package apply

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"

	"github.com/fairlead-cni/fairlead/agent/status"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
	"github.com/fairlead-cni/fairlead/datapath/vswitchd"
)

// guard takes the lock that build/ovs holds beside ovs-vswitchd, until it is closed.
func (n *node) guard() *os.File {
	n.t.Helper()
	f, err := os.Create(filepath.Join(n.Dir, "fairlead-guard.lock"))
	if err == nil {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { f.Close() })
	return f
}

// restoreWait waits until the key is as expected, and fails the test after a minute.
func (n *node) restoreWait(when string, want ovsdb.RestoreWait) {
	n.t.Helper()
	var got ovsdb.RestoreWait
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if got = n.round().Observed.RestoreWait; got == want {
			return
		}
	}
	n.t.Errorf("%s: flow-restore-wait is %+v, want %+v", when, got, want)
}

func (n *node) start() string {
	n.t.Helper()
	id, err := vswitchd.StartID(n.Dir)
	if err != nil || id == "" {
		n.t.Fatalf("the start of ovs-vswitchd: %q, %v", id, err)
	}
	return id
}

// The next start of ovs-vswitchd waits for all of its flows, and forwards once it has them; but only if a guard runs.
func TestNextStartWaitsForFlows(t *testing.T) {
	n := newNode(t, api.AgentConfig{})
	kernel := n.cfg
	kernel.OVSDatapathType = api.DatapathSystem
	unread := false
	w := NewRestoreWait(n.db, kernel, func() bool { return unread }, status.NewMetrics("test").Health.RestoreWaitArmed,
		testr.New(t))
	apply := func(when string) {
		t.Helper()
		if _, err := w.Apply(n.soon(), n.round()); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	apply("without a guard")
	n.restoreWait("without a guard", ovsdb.RestoreWait{})
	guard := n.guard()
	if !w.Due() {
		t.Error("there is a guard now, and nothing is due")
	}
	first := n.start()
	apply("with a guard")
	n.restoreWait("with a guard", ovsdb.RestoreWait{Set: true, Ours: true, Restored: first})

	n.Vswitchd.Kill()
	n.Vswitchd.Start()
	second := n.start()
	unread = true
	apply("flows are still to come")
	n.restoreWait("flows are still to come", ovsdb.RestoreWait{Set: true, Ours: true, Restored: first})
	if !w.Waits() {
		t.Error("ovs-vswitchd goes on before it has its flows")
	}
	unread = false
	apply("it has all flows")
	n.restoreWait("it has all flows", ovsdb.RestoreWait{Set: true, Ours: true, Restored: second})
	if w.Waits() || w.NeedsVerify(n.round().Observed) || !w.InPlace(t.Context(), n.round().Observed) {
		t.Errorf("it has all flows: it waits %t, or that is in doubt, or not in place", w.Waits())
	}

	guard.Close()
	if !w.Due() {
		t.Error("the guard has died, and nothing is due")
	}
	apply("the guard has died")
	n.restoreWait("the guard has died", ovsdb.RestoreWait{Restored: second})
}

// A key that another program has set stays only for some seconds; when that program removes it, it may have restored
// flows.
func TestForeignRestoreWait(t *testing.T) {
	n := newNode(t, api.AgentConfig{})
	w := NewRestoreWait(n.db, n.cfg, func() bool { return false }, status.NewMetrics("test").Health.RestoreWaitArmed,
		testr.New(t))
	foreign := ovsdb.RestoreWait{Set: true}
	n.Ctl("--no-wait", "set", "Open_vSwitch", ".", "other_config:flow-restore-wait=true")
	n.restoreWait("another program sets it", foreign)
	if _, err := w.Apply(n.soon(), n.round()); !errors.Is(err, errForeignWait) || !w.Due() {
		t.Errorf("another program has set it: %v, and it is due again: %t", err, w.Due())
	}
	n.restoreWait("a moment later", foreign)
	if !w.NeedsVerify(ovsdb.Observed{}) {
		t.Error("another program has had ovs-vswitchd go on, and there is no doubt about its flows")
	}
	w.foreign = time.Now().Add(-2 * foreignWait)
	if c, err := w.Apply(n.soon(), n.round()); err != nil || len(c.Repaired) != 1 {
		t.Errorf("after too long: %v, repaired %q", err, c.Repaired)
	}
	n.restoreWait("after too long", ovsdb.RestoreWait{})
}
