package apply

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-cni/fairlead/agent/status"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
	"github.com/fairlead-cni/fairlead/datapath/vswitchd"
)

// foreignWait is how long another program may make ovs-vswitchd wait: "ovs-ctl restart" takes some seconds to restore
// flows.
const foreignWait = 5 * time.Second

var errForeignWait = errors.New("ovs-vswitchd may be waiting: other_config:flow-restore-wait is set, and not by Fairlead " +
	`("ovs-ctl restart" sets it while it restores flows). Fairlead removes it after ` + foreignWait.String())

// RestoreWait makes ovs-vswitchd start forwarding once all flows are written, and makes its next start wait again until
// its flows are written, so that the kernel's megaflows stay in use meanwhile (other_config:flow-restore-wait; package
// ovsdb). As the next start may follow a crash, the key is always set.
//
// The key stops every bridge of the node until it is removed. So it is set only while a guard runs beside ovs-vswitchd,
// and only for the kernel datapath: in userspace no flow outlives the process. A key that was left behind is removed.
type RestoreWait struct {
	db     *ovsdb.DB
	bridge string
	runDir string // of Open vSwitch
	// kernel: Open vSwitch uses the kernel datapath.
	kernel bool
	// unread reports whether flows are still to come.
	unread func() bool
	gauge  prometheus.Gauge
	log    logr.Logger

	seen  ovsdb.RestoreWait // as the last Apply left it
	armed bool              // as of the last round
	// foreign is since when another program's key has been seen although the switch has its flows. Zero: none.
	foreign time.Time
}

// NewRestoreWait returns the applier for the Open vSwitch that the config names. While unread reports that flows are
// still to come, an ovs-vswitchd that waits for them keeps waiting. armed shows whether the key is set.
func NewRestoreWait(db *ovsdb.DB, cfg api.AgentConfig, unread func() bool, armed prometheus.Gauge,
	log logr.Logger) *RestoreWait {
	return &RestoreWait{db: db, bridge: cfg.OVSBridge, runDir: cfg.OVSRunDir,
		kernel: cfg.OVSDatapathType != api.DatapathNetdev, unread: unread,
		gauge: armed, log: log}
}

// Name implements Applier.
func (*RestoreWait) Name() string { return "flow-restore-wait" }

// Apply implements Applier.
func (w *RestoreWait) Apply(ctx context.Context, _ *Round) (c Changes, err error) {
	start, arm, err := w.mayArm()
	if err != nil {
		return c, err
	}
	obs, err := w.db.Observe(w.bridge) // the flows may have taken seconds
	if err != nil {
		return c, err
	}
	now := obs.RestoreWait
	w.seen = now
	foreign := w.noteForeign(now)
	switch {
	case now.Set && now.Ours && arm && now.Restored == start, !now.Set && !arm:
		w.report(arm)
		return c, nil
	case w.flowsPending(now, arm):
		return c, nil
	case foreign && time.Since(w.foreign) < foreignWait:
		if now.Restored == start && start != "" {
			return c, nil // the running ovs-vswitchd ignores it
		}
		return c, errForeignWait
	case foreign:
		c.Repaired = []string{"left behind by another program: it would stop every bridge"}
	}
	if err := w.db.ClearRestoreWait(ctx); err != nil {
		return c, err
	}
	w.seen = ovsdb.RestoreWait{Restored: now.Restored}
	return c, w.arm(ctx, start, arm)
}

// flowsPending reports whether flows are still to come. Then another round follows; the guard waits only seconds.
func (w *RestoreWait) flowsPending(now ovsdb.RestoreWait, arm bool) bool {
	return now.Set && now.Ours && arm && w.unread()
}

// noteForeign reports whether another program has set the key, and records since when.
func (w *RestoreWait) noteForeign(now ovsdb.RestoreWait) bool {
	foreign := now.Set && !now.Ours
	switch {
	case !foreign:
		w.foreign = time.Time{}
	case w.foreign.IsZero():
		w.foreign = time.Now()
	}
	return foreign
}

// arm makes the next start of ovs-vswitchd wait, if that is wanted. The key is not set when it is called.
func (w *RestoreWait) arm(ctx context.Context, start string, wanted bool) error {
	if wanted {
		if err := w.db.SetRestoreWait(ctx, start); err != nil {
			return err
		}
		w.seen = ovsdb.RestoreWait{Set: true, Ours: true, Restored: start}
	}
	w.report(wanted)
	return nil
}

func (w *RestoreWait) report(armed bool) {
	if armed != w.armed {
		w.log.Info("flow-restore-wait for the next start of ovs-vswitchd", "armed", armed)
	}
	w.armed = armed
	w.gauge.Set(status.Flag(armed))
}

// mayArm reports whether the next start of ovs-vswitchd may wait for the agent, and identifies the running one's start
// as the guard does: by its PID file.
func (w *RestoreWait) mayArm() (start string, arm bool, err error) {
	if !w.kernel {
		return "", false, nil
	}
	start, err = vswitchd.StartID(w.runDir)
	if err != nil || start == "" {
		return "", false, err
	}
	arm, err = guarded(w.runDir)
	return start, arm, err
}

// Waits reports whether the running ovs-vswitchd waits for its flows, or may do so. Any goroutine may call it.
func (w *RestoreWait) Waits() bool {
	if !w.kernel {
		return false
	}
	start, err := vswitchd.StartID(w.runDir)
	obs, oerr := w.db.Observe(w.bridge)
	return err != nil || oerr != nil || obs.RestoreWait.Set && obs.RestoreWait.Restored != start
}

// guarded reports whether the guard (build/ovs) runs: it holds a lock.
func guarded(ovsRunDir string) (bool, error) {
	f, err := os.Open(filepath.Join(ovsRunDir, "fairlead-guard.lock"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking for the guard of ovs-vswitchd: %w", err)
	}
	defer f.Close()
	// Shared, so that two callers do not take each other for the guard.
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
	return errors.Is(err, syscall.EWOULDBLOCK), nil
}

// NeedsVerify implements Watcher: another program has ended ovs-vswitchd's wait, and may have restored old flows.
func (w *RestoreWait) NeedsVerify(obs ovsdb.Observed) bool {
	return !obs.RestoreWait.Set && (w.armed || !w.foreign.IsZero())
}

// InPlace implements Watcher.
func (w *RestoreWait) InPlace(_ context.Context, obs ovsdb.Observed) bool {
	return w.foreign.IsZero() && obs.RestoreWait == w.seen
}

// Due implements Watcher: the guard has ended or returned, or another program's key is set.
func (w *RestoreWait) Due() bool {
	_, arm, err := w.mayArm()
	return err == nil && arm != w.armed || !w.foreign.IsZero()
}
