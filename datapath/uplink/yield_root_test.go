package uplink

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// While Open vSwitch is down the host has its NIC, with its whole configuration, whatever kills the process that
// yields. The NIC is attached again when another ovs-vswitchd runs, not before.
func TestRootYield(t *testing.T) {
	t.Parallel() // mostly waits for Open vSwitch and the kernel
	f := setup(t, rich, noDAD()...)
	f.killAtEveryStep("yield", atSome(t, recovery{"another ovs-vswitchd", (*fixture).comeBack, Attached}))
	if f.comeBack(); t.Failed() {
		return
	}
	f.ovs.Vswitchd.Kill()
	f.yields()
	f.checkAfter(Detached, "yielded with ovs-vswitchd dead")
	f.onNode(func(ctx context.Context, u *Uplink) error { return u.Restore(ctx, ByHand) })
	f.ovs.Vswitchd.Start()
	f.due(false, "restored manually")
}

// comeBack is what agents do while ovs-vswitchd is replaced, after a yield that may have been interrupted.
func (f *fixture) comeBack() {
	f.t.Helper()
	f.yieldsOrResumes()
	f.due(false, "that ovs-vswitchd runs still")
	f.checkAfter(Detached, "yielded")
	f.ovs.Vswitchd.Kill()
	f.reached()
	f.due(false, "ovs-vswitchd is not running")
	f.ovs.Vswitchd.Start()
	f.due(true, "another ovs-vswitchd runs")
	f.nextAgent()
}

// onNode calls do with the uplink, in the node's network namespace.
func (f *fixture) onNode(do func(context.Context, *Uplink) error) {
	f.t.Helper()
	f.node.Must(func() error { return do(f.t.Context(), f.open()) })
}

func (f *fixture) due(want bool, when string) {
	f.t.Helper()
	if u := f.open(); u.Due(f.t.Context()) != want {
		f.t.Errorf("%s, and whether the NIC is to be attached again is %t: %+v", when, !want, u.Journal())
	}
}

// The host has its NIC while ovs-vswitchd hangs, even if ovsdb-server does, too, as in a frozen pod, and it is attached
// again when they continue.
func TestRootYieldOfHung(t *testing.T) {
	for name, daemons := range map[string]func(*fixture) []*ovstest.Daemon{
		"ovs-vswitchd": func(f *fixture) []*ovstest.Daemon { return []*ovstest.Daemon{f.ovs.Vswitchd} },
		"both":         func(f *fixture) []*ovstest.Daemon { return []*ovstest.Daemon{f.ovs.Vswitchd, f.ovs.Server} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setup(t, simple, noDAD()...)
			f.ovs.NameSocket()
			f.before = f.state()
			f.nextAgent()
			f.attached = f.state()
			for _, d := range daemons(f) {
				d.Signal(syscall.SIGSTOP)
			}
			u := f.open()
			err := f.node.Do(func() error { _, err := u.Yield(t.Context(), VswitchdHangs); return err })
			if (err != nil) != (name == "both") { // the rows stay
				t.Errorf("yield: %v", err)
			}
			f.reached()
			f.due(false, "it hangs")
			for _, d := range daemons(f) {
				d.Signal(syscall.SIGCONT)
			}
			f.due(name != "both", "it goes on")
			f.nextAgent()
			f.checkAfter(Attached, "it goes on")
		})
	}
}

// An agent that starts on a node whose addresses were removed with Open vSwitch restores them without waiting for it.
func TestRootLostWithOVS(t *testing.T) {
	t.Parallel()
	f := setup(t, simple, noDAD()...)
	f.before = f.state()
	f.nextAgent()
	f.attached = f.state()
	f.ovs.Appctl("exit", "--cleanup")
	f.waitNoBridge()
	f.ovs.Vswitchd.Kill() // exits on its own; this waits for it
	if err := f.attach(); err == nil || !strings.Contains(err.Error(), VswitchdDead) {
		t.Errorf("attach: %v", err)
	}
	f.checkAfter(Detached, "the next agent without ovs-vswitchd")
	f.ovs.Vswitchd.Start()
	f.due(true, "ovs-vswitchd is back")
	f.nextAgent()
	f.checkAfter(Attached, "ovs-vswitchd is back")
}

// If the agent is killed during an attach, or the process that yields is, the next yield completes the work.
func TestRootYieldIsTheLast(t *testing.T) {
	for _, op := range []string{"attach", "yield"} {
		t.Run(op, func(t *testing.T) {
			t.Parallel() // mostly waits for Open vSwitch and the kernel
			f := setup(t, simple, noDAD()...)
			f.killAtEveryStep(op, atSome(t, recovery{"yield", (*fixture).yieldsTheRest, Detached}))
		})
	}
}

func (f *fixture) yieldsTheRest() {
	f.onNode(func(ctx context.Context, u *Uplink) error { _, err := u.Yield(ctx, VswitchdEnds); return err })
}

// A NIC that was restored while Open vSwitch was dead, by a program that could not change the database, stays with the
// host when Open vSwitch starts again, without an agent.
func TestRootBootLeavesARestoredNIC(t *testing.T) {
	t.Parallel() // mostly waits for Open vSwitch and the kernel
	f := setup(t, simple, noDAD()...)
	f.before = f.state()
	f.nextAgent()
	f.bootScript() // no-op while it is attached
	if out, err := f.ovs.Run("ovs-vsctl", "--no-wait", "br-exists", BridgeName); err != nil {
		t.Errorf("an attached uplink: %v: %s", err, out)
	}
	f.ovs.Vswitchd.Kill()
	f.ovs.Server.Kill()
	t.Log(f.withoutOVSDBTool())
	f.bootScript()
	f.ovs.Server.Start()
	f.ovs.Vswitchd.Start()
	f.checkAfter(Detached, "Open vSwitch is back")
	if out, err := f.ovs.Run("ovs-vsctl", "list-br"); err != nil || strings.Contains(out, BridgeName) {
		t.Errorf("bridges: %v: %s", err, out)
	}
}

// A restore that was killed when it had just begun leaves the host's addresses on br-uplink, and the boot script keeps
// them there.
func TestRootBootLeavesARestoreThatHasBegun(t *testing.T) {
	ovstest.KernelOnly(t, "the bridge of the userspace datapath ends with ovs-vswitchd")
	t.Parallel() // mostly waits for Open vSwitch and the kernel
	f := setup(t, simple, noDAD()...)
	f.before = f.state()
	f.nextAgent()
	f.attached = f.state()
	t.Log("killed after", f.run("restore", 1))
	f.ovs.Vswitchd.Kill()
	f.bootScript()
	f.ovs.Vswitchd.Start()
	f.reached()
	f.nextAgent()
	f.checkAfter(Attached, "the next agent")
}

// withoutOVSDBTool restores on a node whose ovsdb-tool fails, and returns the output.
func (f *fixture) withoutOVSDBTool() string {
	f.t.Helper()
	dir := f.t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "ovsdb-tool"), []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
		f.t.Fatal(err)
	}
	cmd := f.command("restore", 0)
	cmd.Env = append(cmd.Env, "PATH="+dir+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err == nil {
		f.t.Error("a restore that can't change the database says nothing")
	}
	return string(out)
}
