package uplink

import (
	"context"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/datapath/uplink/gateways"
)

// Unreached reports whether the NIC was restored because the network was unreachable while it was attached.
func (u *Uplink) Unreached() bool { return u.isDetached() && u.journal.Unreached }

// Postponed reports whether the NIC was restored because an attach was undone, for any reason. It is attached again
// when the journal says so.
func (u *Uplink) Postponed() bool { return u.isDetached() && (u.journal.Unreached || u.journal.Failed) }

// Manual reports whether the NIC was restored on request.
func (u *Uplink) Manual() bool { return u.isDetached() && u.journal.Reason == ByHand }

func (u *Uplink) isDetached() bool { return u.ThisBoot() && u.journal.Phase == Detached }

// RollBack restores the NIC of an attached uplink because the network is unreachable through it. The error is why, and
// ErrRolledBack if that succeeded. It does nothing, and returns nil, if the NIC is no longer attached.
func (u *Uplink) RollBack(ctx context.Context, why error, p Plan) error {
	unlock, err := u.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if !u.Attached() {
		return nil
	}
	return u.rollBack(ctx, why, p, true)
}

// Rebuild restores what is missing, as Repair does, after it has removed br-uplink from Open vSwitch's database: for
// external changes that only ovs-vswitchd has, such as those to flows. Until br-uplink exists again, which takes as
// long as an attach, nothing passes.
func (u *Uplink) Rebuild(ctx context.Context) (steps []string, err error) {
	unlock, err := u.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if !u.Attached() {
		return nil, nil
	}
	if why, _ := u.absent(ctx); why != "" {
		return nil, nil
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepLimit) // see run
	defer cancel()
	err = u.journal.DB.Remove(limited, u.journal.Bridge)
	u.after("removed the bridge")
	if err == nil {
		err = u.journal.DB.WaitApplied(limited)
	}
	if err != nil {
		return nil, fmt.Errorf("rebuilding %s: %w", u.journal.Bridge.Name, err)
	}
	u.did = nil
	err = u.run(ctx)
	return u.did, err
}

// Carrier reports whether the NIC is up and has a carrier.
func (u *Uplink) Carrier() bool {
	nic, err := u.nic()
	return err == nil && nic.Attrs().RawFlags&unix.IFF_UP != 0 && nic.Attrs().RawFlags&unix.IFF_LOWER_UP != 0
}

// OnWire returns nil if a default gateway of the host answers on the NIC itself, bypassing Open vSwitch.
func (u *Uplink) OnWire(ctx context.Context) error {
	return gateways.OnWire(ctx, u.holder(), u.journal.NIC.Name)
}

// holder returns the interface that has the host's addresses now.
func (u *Uplink) holder() string {
	if u.journal.Phase == Detached {
		return u.journal.NIC.Name
	}
	return u.journal.Holder()
}

// nicDown reports whether the NIC was set down since the attach.
func (u *Uplink) nicDown(nic netlink.Link) bool {
	return nic != nil && u.journal.NIC.Flags&unix.IFF_UP != 0 && nic.Attrs().RawFlags&unix.IFF_UP == 0
}
