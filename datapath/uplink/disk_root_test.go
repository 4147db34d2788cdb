package uplink

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/datapath/uplink/journal"
	"github.com/fairlead-cni/fairlead/test/nstest"
)

// diskFault is what happens to the file system of the journal.
type diskFault struct {
	name string
	do   func(f *fixture)
	heal func(f *fixture)
}

func diskFaults() []diskFault {
	filler := func(f *fixture) string { return filepath.Join(filepath.Dir(f.journal), "filler") }
	return []diskFault{
		{"full", func(f *fixture) {
			f.t.Helper()
			err := os.WriteFile(filler(f), make([]byte, 1<<20), 0o600)
			if !errors.Is(err, unix.ENOSPC) {
				f.t.Fatalf("filling the file system: %v", err)
			}
		}, func(f *fixture) { os.Remove(filler(f)) }},
		{"read-only", func(f *fixture) { f.remount(unix.MS_RDONLY) }, func(f *fixture) { f.remount(0) }},
	}
}

// ownDisk has the journal lie on a file system of its own.
func (f *fixture) ownDisk() {
	f.t.Helper()
	dir := filepath.Join(filepath.Dir(f.journal), "state")
	if err := os.Mkdir(dir, 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=64k"); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	f.journal = filepath.Join(dir, "uplink.json")
}

func (f *fixture) remount(flags uintptr) {
	f.t.Helper()
	if err := unix.Mount("none", filepath.Dir(f.journal), "tmpfs", unix.MS_REMOUNT|flags, "size=64k"); err != nil {
		f.t.Fatal(err)
	}
}

// With a disk that is full or read-only no NIC is attached, and one that is attached is repaired, yielded and restored
// all the same.
func TestRootDiskFaults(t *testing.T) {
	for _, fault := range diskFaults() {
		t.Run(fault.name, func(t *testing.T) {
			t.Parallel() // most of the time is Open vSwitch's and the kernel's, waiting
			f := setup(t, simple, noDAD()...)
			f.ownDisk()
			f.before = f.state()
			fault.do(f)
			if err := f.attach(); !errors.As(err, new(*journal.Error)) || errors.Is(err, ErrRolledBack) {
				t.Errorf("attach: %v, want a refusal for its journal", err)
			}
			same(t, "after a refused attach", f.before, f.state())
			fault.heal(f)
			f.nextAgent()
			f.attached = f.state()
			if f.reached(); t.Failed() {
				return
			}

			fault.do(f)
			f.node.IP("addr flush dev " + BridgeName)
			f.repairs("addresses were flushed")
			f.exitCleanup()
			f.repairs("ovs-appctl exit --cleanup")
			f.ovs.Vswitchd.Kill()
			f.yields()
			same(t, "yielded", f.before, f.state())
			f.ovs.Vswitchd.Start()
			f.due(true, "another ovs-vswitchd runs")
			if err := f.attach(); !errors.As(err, new(*journal.Error)) {
				t.Errorf("attach after a yield: %v, want a refusal for its journal", err)
			}
			same(t, "after a refused attach", f.before, f.state())
			fault.heal(f)
			f.nextAgent()
			f.checkAfter(Attached, "attached again")

			fault.do(f)
			if err := f.restore(); err != nil {
				t.Errorf("restore: %v", err)
			}
			f.checkAfter(Detached, "restored")
			if u := f.open(); u.Attached() || u.Unfinished() {
				t.Errorf("a restore that is on record in memory alone: %+v", u.Journal())
			}
			fault.heal(f)
			if err := f.restore(); err != nil {
				t.Errorf("restore on a healthy disk: %v", err)
			}
			f.checkAfter(Detached, "restored on a healthy disk")
		})
	}
}

// repairs checks that the next look at the uplink brings back all that an attached one has.
func (f *fixture) repairs(what string) {
	f.t.Helper()
	f.onNode(func(ctx context.Context, u *Uplink) error {
		_, err := u.Mend(ctx)
		return err
	})
	same(f.t, what, f.attached, f.state())
	f.reached()
}

// yields does what agents do when ovs-vswitchd is dead.
func (f *fixture) yields() {
	f.t.Helper()
	f.onNode(func(ctx context.Context, u *Uplink) error {
		if did, err := u.Yield(ctx, VswitchdDead); err != nil || !did {
			return fmt.Errorf("yield with ovs-vswitchd dead: %t, %w", did, err)
		}
		return nil
	})
}

// exitCleanup has ovs-vswitchd end so that it takes its interfaces along, and starts another.
func (f *fixture) exitCleanup() {
	f.t.Helper()
	f.ovs.Appctl("exit", "--cleanup")
	f.waitNoBridge()
	f.ovs.Vswitchd.Kill() // it ends by itself; this waits until it has
	f.ovs.Vswitchd.Start()
}

func (f *fixture) waitNoBridge() {
	f.t.Helper()
	nstest.Wait(f.t, 10*time.Second, BridgeName+" to go with ovs-vswitchd", func() bool {
		_, err := f.node.Run("ip", "link", "show", BridgeName)
		return err != nil
	})
}
