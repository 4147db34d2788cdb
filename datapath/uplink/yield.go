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
)

// noStart is what a journal has for the start of ovs-vswitchd where none runs.
const noStart = "none"

// Yield gives the NIC back to the host while Open vSwitch is away: in mode bridge all that the host sends and receives
// goes through it, also what brings the next Open vSwitch to the node, such as its image. The journal says that it is
// to be attached again as soon as another ovs-vswitchd runs: see Due. It does nothing, and returns false, if the NIC is
// not attached in mode bridge.
func (u *Uplink) Yield(ctx context.Context, reason string) (yielded bool, err error) {
	unlock, err := u.lock(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	if !u.Attached() && !(u.rebuilt && u.Unfinished() && u.ThisBoot()) || u.journal.UplinkMode() != api.UplinkBridge {
		return false, nil
	}
	u.journal.Yielded = u.startNow()
	return true, u.restore(ctx, reason)
}

// repair puts back what is missing of an uplink that is attached, or yields if that is in vain.
func (u *Uplink) repair(ctx context.Context) error {
	if !u.lost() {
		return u.run(ctx)
	}
	u.journal.Yielded = u.startNow()
	if err := u.restore(ctx, VswitchdDead); err != nil {
		return fmt.Errorf("%s: %w", VswitchdDead, err)
	}
	return fmt.Errorf("%s: the host has %s until it is", VswitchdDead, u.journal.NIC.Name)
}

// lost reports whether the node's addresses went with br-uplink, and no ovs-vswitchd is there to make that again.
func (u *Uplink) lost() bool {
	device, err := findLink(u.journal.Bridge.Name)
	return err == nil && device == nil && u.journal.UplinkMode() == api.UplinkBridge &&
		!vswitchd.Running(u.journal.DB.RunDir)
}

// Yielded reports whether the host has its NIC back only as long as Open vSwitch is away.
func (u *Uplink) Yielded() bool {
	return u.ThisBoot() && u.journal.Phase == Detached && u.journal.Yielded != ""
}

// Due reports whether the uplink has yielded, and another ovs-vswitchd than the one before runs now.
func (u *Uplink) Due() bool {
	if !u.Yielded() {
		return false
	}
	j, now := u.journal, u.startNow()
	return now != noStart && now != j.Yielded
}

func (u *Uplink) startNow() string {
	if start := vswitchd.RunningStartID(u.journal.DB.RunDir); start != "" {
		return start
	}
	return noStart
}
