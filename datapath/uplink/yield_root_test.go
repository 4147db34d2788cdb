package uplink

import (
	"context"
	"strings"
	"testing"
)

// While Open vSwitch is away the host has its NIC, with all that it had, and it is attached again when another
// ovs-vswitchd runs, not before; whatever kills the process that yields.
func TestRootYield(t *testing.T) {
	t.Parallel() // most of the time is Open vSwitch's and the kernel's, waiting
	f := setup(t, rich, noDAD()...)
	f.killAtEveryStep("yield", always(recovery{"another ovs-vswitchd", (*fixture).comeBack, Attached}))
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

// comeBack is what agents do after a yield that may have been cut off, while ovs-vswitchd is replaced.
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

// onNode does something with the uplink in the network namespace of the node.
func (f *fixture) onNode(do func(context.Context, *Uplink) error) {
	f.t.Helper()
	f.node.Must(func() error { return do(f.t.Context(), f.open()) })
}

func (f *fixture) due(want bool, when string) {
	f.t.Helper()
	if u := f.open(); u.Due() != want {
		f.t.Errorf("%s, and whether the NIC is to be attached again is %t: %+v", when, u.Due(), u.Journal())
	}
}

// An agent that starts on a node whose addresses went with Open vSwitch does not wait for that.
func TestRootLostWithOVS(t *testing.T) {
	t.Parallel()
	f := setup(t, simple, noDAD()...)
	f.before = f.state()
	f.nextAgent()
	f.attached = f.state()
	f.ovs.Appctl("exit", "--cleanup")
	f.waitNoBridge()
	f.ovs.Vswitchd.Kill() // it ends by itself; this waits until it has
	if err := f.attach(); err == nil || !strings.Contains(err.Error(), VswitchdDead) {
		t.Errorf("attach: %v", err)
	}
	f.checkAfter(Detached, "the next agent without ovs-vswitchd")
	f.ovs.Vswitchd.Start()
	f.due(true, "ovs-vswitchd is back")
	f.nextAgent()
	f.checkAfter(Attached, "ovs-vswitchd is back")
}
