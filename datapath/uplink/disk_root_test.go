package uplink

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/uplink/journal"
	"github.com/fairlead-cni/fairlead/internal/atomicfile"
	"github.com/fairlead-cni/fairlead/test/nstest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// diskFault is a fault of the journal's file system.
type diskFault struct {
	name     string
	do, heal func(f *fixture)
	loses    bool   // the journal is lost
	says     string // what the status reports; empty: the disk takes another journal
}

func diskFaults(t *testing.T) []diskFault {
	dir := func(f *fixture) string { return filepath.Dir(f.journal) }
	filler := func(f *fixture) string { return filepath.Join(dir(f), "filler") }
	faults := []diskFault{
		{name: "full", says: "no space left on device", do: func(f *fixture) {
			f.t.Helper()
			err := os.WriteFile(filler(f), make([]byte, 1<<20), 0o600)
			if !errors.Is(err, unix.ENOSPC) {
				f.t.Fatalf("filling the file system: %v", err)
			}
		}, heal: func(f *fixture) { os.Remove(filler(f)) }},
		{name: "read-only", says: "read-only file system", do: func(f *fixture) { f.remount(unix.MS_RDONLY) },
			heal: func(f *fixture) { f.remount(0) }},
		{name: "emptied", do: func(f *fixture) { os.Remove(f.journal) }, heal: func(*fixture) {}, loses: true},
		{name: "gone", says: "not a directory", do: func(f *fixture) {
			// Not even a directory can be created there.
			f.must(unix.Unmount(dir(f), unix.MNT_DETACH), os.Remove(dir(f)), os.WriteFile(dir(f), nil, 0o600))
		}, heal: func(f *fixture) {
			f.must(os.Remove(dir(f)), os.Mkdir(dir(f), 0o755), unix.Mount("none", dir(f), "tmpfs", 0, "size=64k"))
		}, loses: true},
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		t.Run("EIO", func(t *testing.T) { t.Skipf("SKIPPED, NOT TESTED: a disk that fails is a loop device: %v", err) })
		return faults
	}
	for _, eio := range []diskFault{
		{name: "answering EIO, then replaced", do: func(f *fixture) { f.failDisk(true, true) }, loses: true},
		{name: "answering EIO for a while", do: func(f *fixture) { f.failDisk(true, false) }},
		{name: "answering writes with EIO", do: func(f *fixture) { f.failDisk(false, false) }},
	} {
		eio.says, eio.heal = "input/output error", func(f *fixture) { f.must(unix.Unmount(dir(f), unix.MNT_DETACH)) }
		faults = append(faults, eio)
	}
	return faults
}

// failDisk puts the journal on a disk that writes nothing from now on: writes stay in memory until fsync returns EIO.
// unreadable: reads fail, too. The disk is mounted over the previous one, and keeps the journal as it is now, or loses
// it.
func (f *fixture) failDisk(unreadable, lost bool) {
	f.t.Helper()
	const shutdown = 0x8004587d // EXT4_IOC_SHUTDOWN
	dir := filepath.Dir(f.journal)
	text, err := os.ReadFile(f.journal)
	f.must(err)
	fd, err := unix.MemfdCreate("disk", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	f.must(err)
	disk := os.NewFile(uintptr(fd), "disk")
	defer disk.Close() // the mount keeps it open
	f.must(disk.Truncate(1 << 20))
	if lost {
		f.must(os.Remove(f.journal))
	}
	mount := exec.Command("sh", "-c", `mke2fs -q -F -t ext4 -O ^has_journal "$0" && mount -o loop "$0" "$1"`,
		"/proc/self/fd/3", dir)
	mount.ExtraFiles = []*os.File{disk}
	if out, err := mount.CombinedOutput(); err != nil {
		f.t.Fatalf("making a disk in memory: %v: %s", err, out)
	}
	f.must(os.WriteFile(f.journal, text, 0o600))
	d, err := os.Open(dir)
	f.must(err)
	defer d.Close()
	f.must(unix.Syncfs(int(d.Fd())))
	if _, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); err == nil && unreadable {
		err = unix.IoctlSetPointerInt(int(d.Fd()), shutdown, 1) // without flushing
	}
	f.must(err)
	_, read := os.ReadFile(f.journal)
	write := atomicfile.Write(filepath.Join(dir, "other"), text, 0o600)
	if errors.Is(read, unix.EIO) != unreadable || !errors.Is(write, unix.EIO) {
		f.t.Fatalf("the failed disk: reading: %v; writing: %v", read, write)
	}
}

func (f *fixture) must(errs ...error) {
	f.t.Helper()
	if err := errors.Join(errs...); err != nil {
		f.t.Fatal(err)
	}
}

// ownDisk puts the journal on a file system of its own.
func (f *fixture) ownDisk() {
	f.t.Helper()
	dir := filepath.Join(filepath.Dir(f.journal), "state")
	if err := os.Mkdir(dir, 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=64k"); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		for unix.Unmount(dir, unix.MNT_DETACH) == nil { // a failed disk is mounted over it
		}
	})
	f.journal = filepath.Join(dir, "uplink.json")
}

func (f *fixture) remount(flags uintptr) {
	f.t.Helper()
	if err := unix.Mount("none", filepath.Dir(f.journal), "tmpfs", unix.MS_REMOUNT|flags, "size=64k"); err != nil {
		f.t.Fatal(err)
	}
}

// diskEvent is what happens to the node after the fault.
type diskEvent struct {
	name string
	do   func(f *fixture, fault diskFault)
	back bool // the host has its NIC afterwards
}

func (f *fixture) diskEvents() []diskEvent {
	agent := func(before func(f *fixture)) func(*fixture, diskFault) {
		return func(f *fixture, _ diskFault) {
			before(f)
			f.agentOnThatDisk()
		}
	}
	return []diskEvent{
		{name: "the next agent", do: agent(func(*fixture) {})},
		{name: "what is attached taken away", do: agent(func(f *fixture) {
			if f.mode == api.UplinkSteer {
				f.must(os.RemoveAll(f.pins))
			} else {
				f.node.Run("ip", "addr", "flush", "dev", BridgeName)
			}
		})},
		{name: "exit --cleanup", do: agent((*fixture).exitCleanup)},
		{name: "SIGKILL of Open vSwitch", do: agent(func(f *fixture) {
			f.ovs.Vswitchd.Kill()
			f.ovs.Server.Kill()
			f.ovs.Server.Start()
			f.ovs.Vswitchd.Start()
		})},
		{name: "reboot", do: func(f *fixture, fault diskFault) {
			if !fault.loses { // so that the test can change the boot in the journal
				fault.heal(f)
			}
			f.reboot()
			if !fault.loses {
				fault.do(f)
			}
			f.checkAfter(Detached, "reboot")
			f.agentOnThatDisk()
		}},
		{name: "restore", do: func(f *fixture, _ diskFault) { f.must(f.restore()) }, back: true},
		{name: "restore without OVS", do: func(f *fixture, _ diskFault) { f.restoreWithoutOVS() }, back: true},
		{name: "ovs-vswitchd dead", do: func(f *fixture, _ diskFault) {
			f.ovs.Vswitchd.Kill()
			f.yieldsOrResumes()
			f.reached()
			f.ovs.Vswitchd.Start()
		}, back: f.mode != api.UplinkSteer},
	}
}

// agentOnThatDisk is the next agent, which may find that the disk refuses a journal.
func (f *fixture) agentOnThatDisk() {
	f.t.Helper()
	if err := f.attach(); err != nil && !errors.As(err, new(*journal.Error)) {
		f.t.Errorf("attach: %v", err)
	}
}

// diskWay is an operation that is killed at each of its steps. sick: the disk has the fault before it begins, otherwise
// from the kill on.
type diskWay struct {
	op   string // of order, or "attached": nothing is killed
	sick bool
}

// Whatever happens to the disk at any step of attach, roll-back, restore and yield, and to the node afterwards: the
// node has its network, and all that it had. The status names a fault that persists. Without FAIRLEAD_TEST_LONG each
// step meets one fault and one event, and an attached uplink all of them.
func TestRootDiskFaults(t *testing.T) {
	ovstest.UserspaceOnly(t, "the disk is no matter of the datapath; deaths at each step are tried on both")
	diskFaultsIn(t, []diskWay{{"attached", false}, {"attach", false}, {"roll back", false}, {"restore", false},
		{"restore", true}, {"yield", false}, {"yield", true}}, func(t *testing.T) *fixture { return setup(t, steady(), noDAD()...) })
}

// The same in mode steer, where an attached uplink meets each fault and each event, and does not yield.
func TestRootSteerDiskFaults(t *testing.T) {
	ovstest.UserspaceOnly(t, "the disk is no matter of the datapath; deaths at each step are tried on both")
	diskFaultsIn(t, []diskWay{{"attached", false}, {"attach", false}, {"roll back", false}, {"restore", false},
		{"restore", true}}, func(t *testing.T) *fixture { return setupSteer(t, steady()) })
}

func diskFaultsIn(t *testing.T, ways []diskWay, set func(*testing.T) *fixture) {
	faults := diskFaults(t)
	for i, way := range ways {
		t.Run(fmt.Sprintf("%s,sick=%t", way.op, way.sick), func(t *testing.T) {
			t.Parallel() // mostly waits for Open vSwitch and the kernel
			f := set(t)
			f.ownDisk()
			f.before = f.state()
			f.nextAgent()
			f.attached = f.state()
			f.diskFaultsAt(way, faults, 8*i) // no way has many more points
		})
	}
}

// diskFaultsAt tries faults and events at each point of a way. shift is where it starts in both lists: their lengths, 7
// and 8, have no common factor, so that over all ways each fault meets nearly each event.
func (f *fixture) diskFaultsAt(way diskWay, faults []diskFault, shift int) {
	events := f.diskEvents()
	attached, long := way.op == "attached", os.Getenv("FAIRLEAD_TEST_LONG") != ""
	tried := 0
	for n := 1; ; n++ {
		for i, fault := range faults {
			for k, event := range events {
				chosen := i == (n+shift)%len(faults) && k == (n+shift)%len(events)
				if attached {
					chosen = f.mode != api.UplinkSteer || i == k%len(faults)
				}
				if !long && !chosen {
					continue
				}
				if !f.diskFault(way, n, fault, event) {
					f.t.Logf("%d combinations at %d points", tried, n-1)
					return
				}
				if tried++; f.t.Failed() {
					return
				}
			}
		}
	}
}

// diskFault tries one combination. It returns false if there is no such point.
func (f *fixture) diskFault(way diskWay, n int, fault diskFault, event diskEvent) bool {
	f.t.Helper()
	what := "nothing"
	if way.op == "attached" {
		if n > 1 {
			return false
		}
		f.goTo("restore")
	} else {
		f.goTo(way.op)
		if way.sick {
			fault.do(f)
		}
		if what = f.run(way.op, n); what == "" {
			if way.sick {
				fault.heal(f)
			}
			return false
		}
	}
	if !way.sick {
		fault.do(f)
	}
	event.do(f, fault)
	name := fmt.Sprintf("killed after %q, disk %s, then %s", what, fault.name, event.name)
	phase := Detached
	if j := f.open().Journal(); j != nil {
		phase = j.Phase
	}
	if phase != Detached && (phase != Attached || event.back) {
		f.t.Errorf("%s: it is %s", name, phase)
	}
	f.checkAfter(phase, name)
	if s := f.status().Journal; !strings.Contains(s, fault.says) || (s == "") != (fault.says == "") {
		f.t.Errorf("%s: the status has %q of the disk, want %q", name, s, fault.says)
	}
	if phase == Detached && fault.says != "" {
		if err := f.attach(); !errors.As(err, new(*journal.Error)) || errors.Is(err, ErrRolledBack) {
			f.t.Errorf("%s: attach: %v, want a refusal for its journal", name, err)
		}
		f.sameSoon(f.before, name+", and a refused attach")
	}
	fault.heal(f)
	f.nextAgent()
	f.checkAfter(Attached, name+", then the next agent on a healthy disk")
	return true
}

// yieldsOrResumes does what an agent does that starts while ovs-vswitchd is dead.
func (f *fixture) yieldsOrResumes() {
	f.t.Helper()
	f.onNode(func(ctx context.Context, u *Uplink) (err error) {
		switch {
		case u.Unfinished() && u.Journal().Phase == Attaching:
			err = u.Restore(ctx, VswitchdDead)
		case u.Unfinished():
			err = u.Finish(ctx)
		case u.Attached():
			_, err = u.Yield(ctx, VswitchdDead)
		}
		return err
	})
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

// exitCleanup makes ovs-vswitchd exit and remove its interfaces, and starts another one.
func (f *fixture) exitCleanup() {
	f.t.Helper()
	f.ovs.Appctl("exit", "--cleanup")
	f.waitNoBridge()
	f.ovs.Vswitchd.Kill() // exits on its own; this waits for it
	f.ovs.Vswitchd.Start()
}

func (f *fixture) waitNoBridge() {
	f.t.Helper()
	nstest.Wait(f.t, time.Minute, BridgeName+" to go with ovs-vswitchd", func() bool {
		_, err := f.node.Run("ip", "link", "show", BridgeName)
		return err != nil
	})
}
