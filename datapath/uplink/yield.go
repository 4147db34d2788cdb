package uplink

import (
	"context"
	"fmt"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/vswitchd"
)

// Why an uplink yields.
const (
	// VswitchdEnds is the reason where ovs-vswitchd still runs, and is about to be told to end.
	VswitchdEnds = "Open vSwitch is stopping"
	// VswitchdDead is the reason where none runs.
	VswitchdDead = "ovs-vswitchd is not running"
	// VswitchdHangs is the reason where one runs and does nothing.
	VswitchdHangs = "ovs-vswitchd runs, but does not answer"
)

// What a journal has for the start of ovs-vswitchd where none runs, or where the one that runs hangs.
const noStart, hungStart = "none", "hangs"

// Yield gives the NIC back to the host while Open vSwitch is away: in mode bridge all that the host sends and receives
// goes through it, also what brings the next Open vSwitch to the node, such as its image. The journal says that it is
// to be attached again as soon as another ovs-vswitchd runs: see Due. An attach whose process is gone is undone too.
// It does nothing, and returns false, if the NIC is not attached in mode bridge, but to finish a restore.
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

// repair puts back what is missing of an uplink that is attached, or yields if that is in vain.
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

// lost returns absent's answer if the node's addresses went with br-uplink, which only ovs-vswitchd makes again.
func (u *Uplink) lost(ctx context.Context) (why, start string) {
	device, err := findLink(u.journal.Bridge.Name)
	if err != nil || device != nil || u.journal.UplinkMode() != api.UplinkBridge {
		return "", ""
	}
	return u.absent(ctx)
}

// absent is why no ovs-vswitchd works, as a reason to yield, and what a journal has for its start; empty: one does.
func (u *Uplink) absent(ctx context.Context) (why, start string) {
	switch {
	case !vswitchd.Running(u.journal.DB.RunDir):
		return VswitchdDead, noStart
	case vswitchd.Hangs(ctx, u.journal.DB.RunDir):
		return VswitchdHangs, hungStart
	}
	return "", ""
}

// Yielded reports whether the host has its NIC back only as long as Open vSwitch is away.
func (u *Uplink) Yielded() bool {
	return u.isDetached() && u.journal.Yielded != ""
}

// Due reports whether the uplink has yielded, and another ovs-vswitchd than the one before runs now, or that which hung
// answers again.
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
