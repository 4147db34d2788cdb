package uplink

import (
	"context"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/datapath/uplink/gateways"
)

// Unreached reports whether the host has its NIC back because nobody answered while it was attached.
func (u *Uplink) Unreached() bool { return u.isDetached() && u.journal.Unreached }

// Postponed reports whether the host has its NIC back because an attach was undone, whatever for. It is to be attached
// again when that is due by the journal.
func (u *Uplink) Postponed() bool { return u.isDetached() && (u.journal.Unreached || u.journal.Failed) }

// Manual reports whether the host has its NIC back because somebody wants it so.
func (u *Uplink) Manual() bool { return u.isDetached() && u.journal.Reason == ByHand }

func (u *Uplink) isDetached() bool { return u.ThisBoot() && u.journal.Phase == Detached }

// RollBack restores the NIC of an uplink that is attached, because nobody answers through it. The error is why, and
// ErrRolledBack if that succeeded. It does nothing, and returns nil, if the NIC is not attached any more.
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

// Rebuild puts back what is missing, as Mend does, after it has removed br-uplink from Open vSwitch's database: for
// external changes that only ovs-vswitchd knows, like those of flows. Until br-uplink is there again, which takes as
// long as an attach, nothing passes it.
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
		err = u.journal.DB.WaitTaken(limited)
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

// OnWire returns nil if a default gateway of the host answers on the NIC itself, past Open vSwitch.
func (u *Uplink) OnWire(ctx context.Context) error {
	return gateways.OnWire(ctx, u.holder(), u.journal.NIC.Name)
}

// holder is the interface that has the host's addresses now.
func (u *Uplink) holder() string {
	if u.journal.Phase == Detached {
		return u.journal.NIC.Name
	}
	return u.journal.Holder()
}

// nicDown reports whether the NIC was set down, which it was not before the attach.
func (u *Uplink) nicDown(nic netlink.Link) bool {
	return nic != nil && u.journal.NIC.Flags&unix.IFF_UP != 0 && nic.Attrs().RawFlags&unix.IFF_UP == 0
}
