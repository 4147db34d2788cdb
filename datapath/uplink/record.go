package uplink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/fairlead-cni/fairlead/datapath/uplink/hoststate"
	"github.com/fairlead-cni/fairlead/datapath/uplink/journal"
)

// write records step as begun. The error is the disk's. What is recorded in memory only is known until the next boot,
// which begins detached; only an attach must be on disk before it begins.
func (u *Uplink) write(step string) error {
	u.journal.Step, u.journal.Written = step, time.Now()
	u.journal.Seq++
	err := u.save()
	u.after("journal " + step)
	return err
}

func (u *Uplink) save() error {
	var copied error
	u.unwritable, copied = journal.Save(u.path, u.journal)
	if copied != nil && u.unwritable == nil {
		u.log.Error(copied, "writing the copy of the uplink's journal in memory failed")
	}
	u.recorded = u.unwritable == nil || copied == nil
	return u.unwritable
}

// recordUndo records a step back. It succeeds if either file was written.
func (u *Uplink) recordUndo(step string) error {
	err := u.write(step)
	if err != nil && !u.recorded {
		return fmt.Errorf("%w: %w", ErrNotRecorded, err)
	}
	if err != nil {
		u.log.Error(err, "recorded in memory until the next boot", "step", step, "path", journal.InMemory(u.path))
	}
	return nil
}

// Unwritable returns why the last attempt to write the journal to disk failed, a *journal.Error, or nil. Repair tries
// it each time.
func (u *Uplink) Unwritable() error { return u.unwritable }

func (u *Uplink) tryDisk() error {
	u.unwritable = journal.Try(u.path, u.journal)
	return u.unwritable
}

// load reads the journal, which another process may have written. If no file is intact, it uses what it has read or
// written itself, else what it finds on the node. A missing or damaged file is written again.
func (u *Uplink) load(ctx context.Context) error {
	r := journal.Read(u.path, u.bootID)
	if err := u.discardOutdated(&r); err != nil {
		return err
	}
	switch {
	case r.Newest != nil:
		u.journal = r.Newest
	case u.journal == nil:
		j, err := u.rebuildJournal(ctx, r)
		if err != nil || j == nil {
			return err
		}
		u.journal, u.rebuilt = j, true
		u.log.Error(errors.New(j.Reason), "the journal is rebuilt from what the node has, and the NIC will be restored",
			"nic", j.NIC.Name)
	}
	if u.journal == nil || r.Both {
		return nil
	}
	if r.Err != nil {
		u.log.Error(r.Err, "writing the uplink's journal again")
	}
	if err := u.save(); err != nil {
		u.log.Error(err, "writing the uplink's journal again")
	}
	return nil
}

// discardOutdated drops a journal of another boot if this process has one of this boot, or if there is something that
// does not survive a boot: addresses on br-uplink, or pinned programs of mode steer.
func (u *Uplink) discardOutdated(r *journal.Record) error {
	j := r.Newest
	if j == nil || j.BootID == u.bootID {
		return nil
	}
	why := fmt.Errorf("the uplink's journal %s is of another boot, but %s is attached", u.path, j.NIC.Name)
	if u.ThisBoot() {
		*r = journal.Record{Err: why}
		return nil
	}
	device, err := findLink(j.Bridge.Name)
	if err != nil || device == nil {
		return err
	}
	addresses, err := hoststate.AddressesOf(iface(device))
	if slices.ContainsFunc(addresses, func(o hoststate.Object) bool { return !o.IP().IsLinkLocalUnicast() }) ||
		pinned(cmp.Or(j.Pins, u.pins)) {
		u.journal = nil // which is the same one
		j.NIC = hoststate.Link{Iface: j.NIC.Iface}
		*r = journal.Record{Parts: j, Err: why}
	}
	return err
}

// followName updates the NIC's name in the journal to its current one, by its index, and returns the old name; empty:
// it was not renamed.
func (u *Uplink) followName() (old string, err error) {
	if !u.ThisBoot() || u.journal.Phase == Detached {
		return "", nil
	}
	nic, err := netlink.LinkByIndex(u.journal.NIC.Index)
	if gone := (netlink.LinkNotFoundError{}); errors.As(err, &gone) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("looking up interface %d: %w", u.journal.NIC.Index, err)
	}
	if old = u.journal.NIC.Name; old == nic.Attrs().Name {
		return "", nil
	}
	u.journal.NIC = u.journal.NIC.Renamed(nic.Attrs().Name)
	return old, nil
}

// lock ensures that one process at a time works on the uplink, and loads the journal. The lock is on the journal's
// directory, since that needs no file: a full or read-only file system must not keep the node from its network. Nor
// must a directory that cannot be opened: then the lock is on the one in memory.
func (u *Uplink) lock(ctx context.Context) (unlock func(), err error) {
	f, onDisk, err := journal.OpenDir(u.path)
	if onDisk != nil {
		u.unwritable = onDisk
	}
	if err != nil {
		u.log.Error(errors.Join(u.unwritable, err), "locking the uplink failed, continuing without a lock")
		return func() {}, u.load(ctx)
	}
	wait, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	err = poll(wait, "another process is attaching or restoring the uplink", func() (bool, error) {
		return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil, nil
	})
	if err == nil {
		err = u.load(ctx)
	}
	if old := ""; err == nil {
		if old, err = u.followName(); old != "" {
			u.log.Info("the NIC was renamed", "nic", u.journal.NIC.Name, "interface", old)
			// The port has no NIC any more, but ovs-vswitchd would keep looking for it. On the way back the bridge is removed
			// with it in any case, and must not wait for the database; otherwise it is retried until the journal is written.
			if err := u.journal.DB.RemoveNIC(ctx, u.journal.Bridge, old); err != nil {
				u.log.Error(err, "removing the NIC's port by its old name", "interface", old)
			}
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}
