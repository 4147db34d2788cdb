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

// foreignWait is how long another program may have ovs-vswitchd wait: "ovs-ctl restart" takes some seconds to put
// flows back.
const foreignWait = 5 * time.Second

var errForeignWait = errors.New("ovs-vswitchd may be waiting: other_config:flow-restore-wait is set, and not by Fairlead " +
	`("ovs-ctl restart" does while it puts flows back). Fairlead removes it after ` + foreignWait.String())

// RestoreWait has ovs-vswitchd go on once all flows are written, and has its next start wait again until its flows
// are written, so that those in the kernel go on meanwhile (other_config:flow-restore-wait; package ovsdb). The
// next start may well follow a crash, so the key is set all the time.
//
// The key stops every bridge of the node until it is removed. So it is set only while a guard lives beside
// ovs-vswitchd, and only for the kernel's datapath: in userspace no flow outlives the process. It is removed where
// it was left.
type RestoreWait struct {
	db     *ovsdb.DB
	bridge string
	runDir string // of Open vSwitch
	// kernel: the datapath is the kernel's.
	kernel bool
	// unread: flows are still to come.
	unread func() bool
	gauge  prometheus.Gauge
	log    logr.Logger

	seen  ovsdb.RestoreWait // as the last Apply left it
	armed bool              // as of the last round
	// foreign is since when another program's key was seen over a connection to a switch that has its flows. Zero:
	// none.
	foreign time.Time
}

// NewRestoreWait returns the applier for the Open vSwitch that the config names. While unread says that flows are still
// to come, an ovs-vswitchd that waits for them goes on waiting. armed shows whether the key is set.
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
	case w.early(now, arm):
		return c, nil
	case foreign && time.Since(w.foreign) < foreignWait:
		if now.Restored == start && start != "" {
			return c, nil // the one that runs ignores it
		}
		return c, errForeignWait
	case foreign:
		c.Repaired = []string{"another program had left it: it would stop every bridge"}
	}
	if err := w.db.ClearRestoreWait(ctx); err != nil {
		return c, err
	}
	w.seen = ovsdb.RestoreWait{Restored: now.Restored}
	return c, w.arm(ctx, start, arm)
}

// early reports whether flows are still to come. A round follows then; the guard waits for seconds only.
func (w *RestoreWait) early(now ovsdb.RestoreWait, arm bool) bool {
	return now.Set && now.Ours && arm && w.unread()
}

// noteForeign returns whether another program has set the key, and keeps since when.
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

// arm has the next start of ovs-vswitchd wait if that is wanted. The key is not set before.
func (w *RestoreWait) arm(ctx context.Context, start string, wanted bool) error {
	if wanted {
		if err := w.db.HoldAtStart(ctx, start); err != nil {
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

// mayArm reports whether the next start of ovs-vswitchd may wait for us, and names the start of the one that runs, as
// the guard does: by its PID file.
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

// Waits reports whether the ovs-vswitchd that runs waits for its flows, or may do so. Any goroutine may ask.
func (w *RestoreWait) Waits() bool {
	if !w.kernel {
		return false
	}
	start, err := vswitchd.StartID(w.runDir)
	obs, oerr := w.db.Observe(w.bridge)
	return err != nil || oerr != nil || obs.RestoreWait.Set && obs.RestoreWait.Restored != start
}

// guarded reports whether the guard (build/ovs) lives: it holds a lock.
func guarded(ovsRunDir string) (bool, error) {
	f, err := os.Open(filepath.Join(ovsRunDir, "fairlead-guard.lock"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking for the guard of ovs-vswitchd: %w", err)
	}
	defer f.Close()
	// Shared: two who ask do not take each other for the guard.
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
	return errors.Is(err, syscall.EWOULDBLOCK), nil
}

// Doubts implements Watcher: another program has had ovs-vswitchd go on, and may have put flows back as they were
// before.
func (w *RestoreWait) Doubts(obs ovsdb.Observed) bool {
	return !obs.RestoreWait.Set && (w.armed || !w.foreign.IsZero())
}

// InPlace implements Watcher.
func (w *RestoreWait) InPlace(_ context.Context, obs ovsdb.Observed) bool {
	return w.foreign.IsZero() && obs.RestoreWait == w.seen
}

// Due implements Watcher: the guard has died or come back, or another program's key is there.
func (w *RestoreWait) Due() bool {
	_, arm, err := w.mayArm()
	return err == nil && arm != w.armed || !w.foreign.IsZero()
}
