package uplink

import (
	"context"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/datapath/uplink/gateways"
	"github.com/fairlead-cni/fairlead/datapath/uplink/journal"
)

const (
	// mostDoublings bounds the wait before another attach: 64 times the first.
	mostDoublings = 6
	// settled is how long an uplink works until its earlier failures no longer count.
	settled = time.Hour
)

// postpone notes one more failure, and when the next attach may be.
func postpone(j *journal.Journal, first time.Duration) {
	if time.Since(j.RetryAt) > settled {
		j.Tries = 0
	}
	j.RetryAt = time.Now().Add(first << min(j.Tries, mostDoublings))
	j.Tries++
}

// Unreached reports whether the host has its NIC back because nobody answered while it was attached.
func (u *Uplink) Unreached() bool {
	return u.ThisBoot() && u.journal.Phase == Detached && u.journal.Unreached
}

// RetryDue reports whether such a NIC may be attached again, as far as its waits say; first is Plan's RetryAfter. A
// time that is further away than any wait is a clock that was set.
func (u *Uplink) RetryDue(first time.Duration) bool {
	wait := time.Until(u.journal.RetryAt)
	return wait <= 0 || wait > first<<mostDoublings
}

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
	limited, cancel := context.WithTimeout(ctx, stepLimit)
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
