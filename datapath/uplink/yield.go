package uplink

import (
	"context"
	"fmt"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/vswitchd"
)

// Why an uplink yields.
const (
	// VswitchdEnds is the reason if ovs-vswitchd still runs, but is about to be stopped.
	VswitchdEnds = "Open vSwitch is stopping"
	// VswitchdDead is the reason if none runs.
	VswitchdDead = "ovs-vswitchd is not running"
	// VswitchdHangs is the reason if one runs but hangs.
	VswitchdHangs = "ovs-vswitchd runs, but does not answer"
)

// What a journal has for the start of ovs-vswitchd if none runs, or if it hangs.
const noStart, hungStart = "none", "hangs"

// Yield restores the NIC to the host while Open vSwitch is down: in mode bridge all of the host's traffic goes through
// it, including what the next Open vSwitch needs, such as its image. The journal says that the NIC is to be attached
// again as soon as another ovs-vswitchd runs: see Due. An attach that was interrupted is undone too. If the NIC is not
// attached in mode bridge it only finishes a restore, and returns false.
func (u *Uplink) Yield(ctx context.Context, reason string) (yielded bool, err error) {
	unlock, err := u.lock(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	switch {
	case !u.ThisBoot() || u.journal.Phase == Detached || u.journal.UplinkMode() != api.UplinkBridge:
		return false, nil
	case u.journal.Phase == Restoring && !u.rebuilt:
		return false, u.run(ctx)
	}
	start := u.startNow()
	if reason == VswitchdHangs {
		start = hungStart
	}
	return true, u.restore(ctx, reason, start)
}

// repair restores what is missing of an attached uplink, or yields if that is impossible.
func (u *Uplink) repair(ctx context.Context) error {
	why, start := u.lost(ctx)
	if why == "" {
		return u.run(ctx)
	}
	if err := u.restore(ctx, why, start); err != nil {
		return fmt.Errorf("%s: %w", why, err)
	}
	return fmt.Errorf("%s: the host has %s until that changes", why, u.journal.NIC.Name)
}

// lost returns absent's result if the node's addresses were lost with br-uplink, which only ovs-vswitchd recreates.
func (u *Uplink) lost(ctx context.Context) (why, start string) {
	device, err := findLink(u.journal.Bridge.Name)
	if err != nil || device != nil || u.journal.UplinkMode() != api.UplinkBridge {
		return "", ""
	}
	return u.absent(ctx)
}

// absent returns why no ovs-vswitchd works, as a reason to yield, and what a journal has for its start; empty: one
// does.
func (u *Uplink) absent(ctx context.Context) (why, start string) {
	switch {
	case !vswitchd.Running(u.journal.DB.RunDir):
		return VswitchdDead, noStart
	case vswitchd.Hangs(ctx, u.journal.DB.RunDir):
		return VswitchdHangs, hungStart
	}
	return "", ""
}

// Yielded reports whether the NIC is restored only while Open vSwitch is down.
func (u *Uplink) Yielded() bool {
	return u.isDetached() && u.journal.Yielded != ""
}

// Due reports whether the uplink has yielded, and a new ovs-vswitchd runs now, or the one that hung answers again.
func (u *Uplink) Due(ctx context.Context) bool {
	if !u.Yielded() || u.startNow() == u.journal.Yielded {
		return false
	}
	why, _ := u.absent(ctx)
	return why == ""
}

func (u *Uplink) startNow() string {
	if start := vswitchd.RunningStartID(u.journal.DB.RunDir); start != "" {
		return start
	}
	return noStart
}
