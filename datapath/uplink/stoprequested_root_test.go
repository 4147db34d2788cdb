package uplink

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/uplink/journal"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// A process that is stopped midway completes what it has begun. An attach is complete then, and the next process checks
// whether the node is reachable.
func TestRootStopRequested(t *testing.T) {
	t.Parallel() // mostly waits for Open vSwitch and the kernel
	f := setup(t, simple, noDAD()...)
	f.before = f.state()
	f.nextAgent()
	f.attached = f.state()
	rebuild := func(ctx context.Context, u *Uplink) error { _, err := u.Rebuild(ctx); return err }
	yield := func(ctx context.Context, u *Uplink) error { _, err := u.Yield(ctx, VswitchdEnds); return err }
	untold := f.plan() // a gateway may answer before ctx is checked
	untold.Check = func(ctx context.Context) error { return ctx.Err() }
	for _, told := range []struct {
		op, after string
		do        func(context.Context, *Uplink) error
		end       Phase
	}{
		{"rebuild", "removed the bridge", rebuild, Attached},
		{"rebuild", "done bridge", rebuild, Attached},
		{"restore", "done undo clear", func(ctx context.Context, u *Uplink) error { return u.Restore(ctx, ByHand) }, Detached},
		{"yield", "done undo routes", yield, Detached},
		{"attach", "done port", func(ctx context.Context, u *Uplink) error { return u.Attach(ctx, untold) }, Attached},
	} {
		if f.goTo(told.op); t.Failed() {
			return
		}
		ctx, cancel := context.WithCancel(t.Context())
		u, what := f.open(), told.op+", told to end after "+told.after
		u.after = func(step string) {
			if step == told.after {
				cancel()
			}
		}
		if err := f.node.Do(func() error { return told.do(ctx, u) }); (err != nil) != (told.op == "attach") || ctx.Err() == nil {
			t.Errorf("%s: %v, %v", what, err, ctx.Err())
		}
		cancel()
		f.checkAfter(told.end, what)
	}
	if phase := f.open().Journal().Phase; phase != Attaching {
		t.Errorf("the attach, which was not to probe the gateway any more, is %s", phase)
	}
}

// An attach that fails midway, for example because the disk becomes full, is rolled back, counted and postponed, and
// the status says until when.
func TestRootFailedIsPutOff(t *testing.T) {
	ovstest.UserspaceOnly(t, "when to try again is no matter of the datapath")
	t.Parallel() // mostly waits for Open vSwitch and the kernel
	f := setup(t, simple, noDAD()...)
	f.ownDisk()
	f.before = f.state()
	full := diskFaults(t)[0]
	u, p := f.open(), f.plan()
	p.RetryAfter = time.Hour
	for try := 1; try <= 2; try++ {
		u.after = func(what string) {
			if what == "done addresses" {
				full.do(f)
			}
		}
		err := f.node.Do(func() error { return u.Attach(t.Context(), p) })
		if !errors.Is(err, ErrRolledBack) || !errors.As(err, new(*journal.Error)) {
			t.Fatalf("attach on a disk that becomes full: %v", err)
		}
		full.heal(f)
		f.checkAfter(Detached, "rolled back")
		if u = f.open(); u.Journal().Tries != try || !u.Postponed() || u.Unreached() || u.Journal().RetryDue(p.RetryAfter) {
			t.Errorf("after try %d: %+v", try, u.Journal())
		}
		if s := f.status(); s.RetryAt.IsZero() || !strings.Contains(s.String(), "attaches the NIC again after") ||
			strings.Contains(s.String(), "answers") {
			t.Errorf("after try %d the status says\n%s", try, s)
		}
	}
	f.nextAgent()
	if u = f.open(); u.Postponed() || u.Journal().Tries != 2 {
		t.Errorf("attached: %+v", u.Journal())
	}
}

// If Open vSwitch was the cause, the NIC is also attached again as soon as it is back.
func TestRootFailedWithoutOVS(t *testing.T) {
	t.Parallel()
	f := setup(t, simple, noDAD()...)
	f.before = f.state()
	f.nextAgent()
	f.attached = f.state()
	f.ovs.Vswitchd.Kill()
	u, why := f.open(), errors.New("timed out waiting for ovs-vswitchd")
	err := f.node.Do(func() error { return u.rollBack(t.Context(), why, f.plan(), false) })
	if !errors.Is(err, ErrRolledBack) {
		t.Error(err)
	}
	f.due(false, "ovs-vswitchd is not running")
	f.ovs.Vswitchd.Start()
	f.due(true, "ovs-vswitchd is back")
	f.nextAgent()
	f.checkAfter(Attached, "ovs-vswitchd is back")
}

// An uplink that was restored manually is not attached automatically.
func TestRootManualRestoreStays(t *testing.T) {
	t.Parallel()
	f := setup(t, simple, noDAD()...)
	f.before = f.state()
	f.nextAgent()
	u, p := f.open(), f.plan()
	f.onNode(func(ctx context.Context, u *Uplink) error { return u.Restore(ctx, ByHand) })
	p.Automatic = true
	f.node.Must(func() error { return u.Attach(t.Context(), p) })
	f.checkAfter(Detached, "restored manually, then an attach that was not asked for")
	if u.Attached() || !u.Manual() {
		t.Errorf("it is %+v", u.Journal())
	}
}

// Mode auto falls back to bridge if steer is not possible, which a full disk does not imply. An attach that tries one
// mode and then the other counts as one.
func TestRootAutoOnAFullDisk(t *testing.T) {
	ovstest.UserspaceOnly(t, "which mode is tried is no matter of the datapath")
	t.Parallel()
	f := setupSteer(t, simple)
	f.ownDisk()
	f.before = f.state()
	full := diskFaults(t)[0]
	attach := func(fill, heal string, tries int) {
		t.Helper()
		u, p := f.open(), f.plan()
		p.Mode = api.UplinkAuto
		u.after = func(what string) {
			switch what {
			case fill:
				full.do(f)
			case heal:
				full.heal(f)
			}
		}
		err := f.node.Do(func() error { return u.Attach(t.Context(), p) })
		if j := f.open().Journal(); !errors.Is(err, ErrRolledBack) || j.Tries != tries {
			t.Errorf("after %d tries: %s in mode %s: %v", j.Tries, j.Phase, j.UplinkMode(), err)
		}
		full.heal(f)
		f.checkAfter(Detached, "rolled back")
	}
	attach("done bridge", "journal roll back", 1)
	f.inTheWay()
	attach("done addresses", "", 2) // in mode bridge, after steer
}
