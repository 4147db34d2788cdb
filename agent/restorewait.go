package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
	"github.com/fairlead-cni/fairlead/datapath/vswitchd"
)

const (
	// guardEvery is how often the loop looks whether the guard lives.
	guardEvery = time.Second
	// othersWait is how long somebody else may have ovs-vswitchd wait:
	// "ovs-ctl restart" takes some seconds to put flows back.
	othersWait = 5 * time.Second
)

// restoreWait keeps ovs-vswitchd waiting at a start until its flows are written,
// so that those in the kernel go on meanwhile (other_config:flow-restore-wait;
// package ovsdb). Owned by the loop's goroutine.
type restoreWait struct {
	armed bool // as of the last round
	// foreign is since when somebody else's key was seen over a connection
	// to a switch that has its flows. Zero: none.
	foreign time.Time
}

var errForeignWait = errors.New("ovs-vswitchd may be waiting: somebody else has set other_config:flow-restore-wait " +
	`("ovs-ctl restart" does while it puts flows back). Fairlead removes it after ` + othersWait.String())

// letGo has ovs-vswitchd go on, once all flows are written, and has its next
// start wait again. That may well be a crash, so the key is set all the time.
//
// The key stops every bridge of the node if nobody removes it. So it is set only
// while a guard lives beside ovs-vswitchd, and only for the kernel's datapath:
// in userspace no flow outlives the process. It is removed where it was left.
func (l *loop) letGo(ctx context.Context) error {
	start, arm, err := l.mayArm()
	if err != nil {
		return err
	}
	obs, err := l.db.Observe(l.cfg.OVSBridge)
	if err != nil {
		return err
	}
	r := obs.RestoreWait
	if !r.Set || r.Ours {
		l.wait.foreign = time.Time{}
	} else if l.wait.foreign.IsZero() {
		l.wait.foreign = time.Now()
	}
	switch {
	case r.Set && r.Ours && arm && r.Restored == start, !r.Set && !arm:
		l.tellArmed(arm)
		return nil
	case r.Set && !r.Ours && time.Since(l.wait.foreign) < othersWait:
		if r.Restored == start && start != "" {
			return nil // the one that runs ignores it
		}
		return errForeignWait
	case r.Set && !r.Ours:
		l.mended("flow-restore-wait", []string{"somebody else had left it: it would stop every bridge"})
	}
	if err := l.db.LetGo(ctx); err != nil {
		return err
	}
	if arm {
		if err := l.db.HoldAtStart(ctx, start); err != nil {
			return err
		}
	}
	l.tellArmed(arm)
	return nil
}

func (l *loop) tellArmed(armed bool) {
	if armed != l.wait.armed {
		l.log.Info("flow-restore-wait for the next start of ovs-vswitchd", "set", armed)
	}
	l.wait.armed = armed
	l.metrics.armed.Set(one(armed))
}

// mayArm reports whether the next start of ovs-vswitchd may wait for us, and
// names the start of the one that runs, as the guard does: by its PID file.
func (l *loop) mayArm() (start string, arm bool, err error) {
	if l.cfg.OVSDatapathType == api.DatapathNetdev {
		return "", false, nil
	}
	start, err = vswitchd.StartID(l.cfg.OVSRunDir)
	if err != nil || start == "" {
		return "", false, err
	}
	arm, err = guarded(l.cfg.OVSRunDir)
	return start, arm, err
}

// waits reports whether the ovs-vswitchd that runs waits for its flows, or may do so.
func (l *loop) waits(db *ovsdb.DB) bool {
	if l.cfg.OVSDatapathType == api.DatapathNetdev {
		return false
	}
	start, err := vswitchd.StartID(l.cfg.OVSRunDir)
	obs, oerr := db.Observe(l.cfg.OVSBridge)
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

// waitChanged reports whether the loop has to look again: the guard has died or
// come back, or somebody else's key is there.
func (l *loop) waitChanged() bool {
	_, arm, err := l.mayArm()
	return err == nil && arm != l.wait.armed || !l.wait.foreign.IsZero()
}

// restored reports whether somebody has had ovs-vswitchd go on who was not us,
// and may have put flows back as they were before.
func (w restoreWait) restored(now ovsdb.RestoreWait) bool {
	return !now.Set && (w.armed || !w.foreign.IsZero())
}
