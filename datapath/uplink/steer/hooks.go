package steer

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/datapath/internal/kernel"
)

// Filters of clsact: run first, with a handle that no other program uses.
const (
	filterPrefix     = "fairlead/"
	filterPreference = 1
	filterHandle     = 0x666c
	qdiscPrefix      = "qdisc-"
)

func (c Config) device(h hook) int {
	if h.port {
		return c.Port
	}
	return c.NIC
}

// openLink opens a pinned link, with the device that it is attached to: 0 if that is gone. There may be none.
func (c Config) openLink(h hook) (l link.Link, info *link.Info, ifindex int, err error) {
	l, err = link.LoadPinnedLink(c.pin(h.name), nil)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil, 0, nil
	}
	if err != nil {
		return nil, nil, 0, fmt.Errorf("opening the link %s: %w", h.name, err)
	}
	info, err = l.Info()
	if err != nil {
		l.Close()
		return nil, nil, 0, fmt.Errorf("querying the link %s: %w", h.name, err)
	}
	if tcx := info.TCX(); tcx != nil && uint32(tcx.AttachType) == uint32(h.attachType()) {
		ifindex = int(tcx.Ifindex)
	}
	return l, info, ifindex, nil
}

// attachTCX replaces the program of the pinned link, or creates a link.
func (c Config) attachTCX(h hook, program *ebpf.Program) error {
	l, _, ifindex, err := c.openLink(h)
	if err != nil {
		return err
	}
	if l != nil {
		defer l.Close()
		if ifindex == c.device(h) {
			return l.Update(program)
		}
		if err := os.Remove(c.pin(h.name)); err != nil {
			return fmt.Errorf("removing the link to another device: %w", err)
		}
	}
	l, err = link.AttachTCX(link.TCXOptions{Interface: c.device(h), Program: program, Attach: h.attachType(),
		Anchor: link.Head()})
	if err != nil {
		return err
	}
	defer l.Close()
	if err := l.Pin(c.pin(h.name)); err != nil {
		return fmt.Errorf("pinning: %w", err)
	}
	return nil
}

// attachedTCX returns the ID of the hook's program on the right device; 0 for none.
func (c Config) attachedTCX(h hook) (ebpf.ProgramID, error) {
	l, info, ifindex, err := c.openLink(h)
	if l == nil || err != nil {
		return 0, err
	}
	defer l.Close()
	if ifindex != c.device(h) {
		return 0, nil
	}
	return info.Program, nil
}

// detachTCX detaches the program, even if another process has the link open. Anything else pinned under the link's name
// is removed with the directory.
func (c Config) detachTCX(h hook) error {
	l, _, ifindex, err := c.openLink(h)
	if l == nil || err != nil {
		return nil
	}
	defer l.Close()
	if ifindex != 0 {
		if err := l.Detach(); err != nil {
			return fmt.Errorf("detaching the program at %s: %w", h.name, err)
		}
	}
	if err := os.Remove(c.pin(h.name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the link %s: %w", h.name, err)
	}
	return nil
}

// unpinned returns Fairlead's links to the device that have no pin, or one in a file system that is not visible here.
func (c Config) unpinned(h hook) (found []link.ID, err error) {
	if c.device(h) == 0 {
		return nil, nil
	}
	all, err := link.QueryPrograms(link.QueryOptions{Target: c.device(h), Attach: h.attachType()})
	if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL) {
		return nil, nil // without tcx there are filters
	}
	if err != nil {
		return nil, fmt.Errorf("listing the programs at %s: %w", h.name, err)
	}
	l, pinned, _, err := c.openLink(h)
	if err != nil {
		return nil, err
	}
	if l != nil {
		defer l.Close()
	}
	for _, one := range all.Programs {
		id, linked := one.LinkID()
		if pinned != nil && pinned.ID == id {
			continue
		}
		if name, err := nameOf(one.ID); err != nil {
			return nil, err
		} else if linked && strings.HasPrefix(name, programPrefix) {
			found = append(found, id)
		}
	}
	return found, nil
}

// nameOf returns "" for a program that is gone.
func nameOf(id ebpf.ProgramID) (string, error) {
	program, err := ebpf.NewProgramFromID(id)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("querying a program: %w", err)
	}
	defer program.Close()
	info, err := program.Info()
	if err != nil {
		return "", fmt.Errorf("querying a program: %w", err)
	}
	return info.Name, nil
}

func (c Config) detachUnpinned(h hook) error {
	all, err := c.unpinned(h)
	errs := []error{err}
	for _, id := range all {
		l, err := link.NewFromID(id)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = l.Detach()
			l.Close()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("detaching a program without a pin at %s: %w", h.name, err))
		}
	}
	return errors.Join(errs...)
}

func (h hook) parent() uint32 {
	if h.egress {
		return netlink.HANDLE_MIN_EGRESS
	}
	return netlink.HANDLE_MIN_INGRESS
}

func (c Config) newFilter(h hook) *netlink.BpfFilter {
	return &netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{LinkIndex: c.device(h), Parent: h.parent(),
		Handle: filterHandle, Protocol: unix.ETH_P_ALL, Priority: filterPreference}, Name: filterPrefix + h.name,
		DirectAction: true}
}

// attachFilter creates or replaces the filter, and first the qdisc if there is none. That this package creates it is
// recorded before.
func (c Config) attachFilter(h hook, program *ebpf.Program) error {
	has, err := c.hasQdisc(c.device(h))
	if err != nil {
		return err
	}
	if !has {
		if err := os.Mkdir(c.pin(qdiscPrefix+strconv.Itoa(c.device(h))), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("recording the qdisc: %w", err)
		}
		if err := netlink.QdiscAdd(clsact(c.device(h))); err != nil {
			return fmt.Errorf("adding the qdisc clsact: %w", err)
		}
	}
	f := c.newFilter(h)
	f.Fd = program.FD()
	if err := netlink.FilterReplace(f); err != nil {
		return fmt.Errorf("adding a tc filter of preference %d: %w", filterPreference, err)
	}
	return nil
}

func clsact(device int) netlink.Qdisc {
	return &netlink.GenericQdisc{QdiscType: "clsact", QdiscAttrs: netlink.QdiscAttrs{LinkIndex: device,
		Parent: netlink.HANDLE_CLSACT, Handle: netlink.MakeHandle(0xffff, 0)}}
}

func (c Config) hasQdisc(device int) (bool, error) {
	l, err := netlink.LinkByIndex(device)
	if err != nil {
		return false, fmt.Errorf("looking up a device: %w", err)
	}
	all, err := kernel.Dump(func() ([]netlink.Qdisc, error) { return netlink.QdiscList(l) })
	if err != nil {
		return false, fmt.Errorf("listing the qdiscs of %s: %w", l.Attrs().Name, err)
	}
	return slices.ContainsFunc(all, func(q netlink.Qdisc) bool { return q.Type() == "clsact" }), nil
}

// filters returns Fairlead's filters, by hook, on existing devices.
func (c Config) filters() (map[string]*netlink.BpfFilter, error) {
	found := map[string]*netlink.BpfFilter{}
	for _, h := range hooks() {
		all, err := filtersOf(c.device(h), h.parent())
		if err != nil {
			return nil, err
		}
		for _, f := range all {
			if b, ok := f.(*netlink.BpfFilter); ok && strings.HasPrefix(b.Name, filterPrefix+h.name) {
				found[h.name] = b
			}
		}
	}
	return found, nil
}

// filtersOf returns none for a device that is gone or has no clsact.
func filtersOf(device int, parent uint32) ([]netlink.Filter, error) {
	if device == 0 {
		return nil, nil
	}
	l, err := netlink.LinkByIndex(device)
	if gone := (netlink.LinkNotFoundError{}); errors.As(err, &gone) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking up a device: %w", err)
	}
	all, err := kernel.Dump(func() ([]netlink.Filter, error) { return netlink.FilterList(l, parent) })
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing the tc filters of %s: %w", l.Attrs().Name, err)
	}
	return all, nil
}

func (c Config) attachedFilter(h hook) (ebpf.ProgramID, error) {
	all, err := c.filters()
	if f := all[h.name]; f != nil && err == nil && f.DirectAction {
		return ebpf.ProgramID(f.Id), nil
	}
	return 0, err
}

func (c Config) detachFilter(h hook) error {
	all, err := c.filters()
	if err != nil || all[h.name] == nil {
		return err
	}
	if err := netlink.FilterDel(c.newFilter(h)); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("removing the tc filter at %s: %w", h.name, err)
	}
	return nil
}

// removeQdiscs removes those created here, unless other programs use them by now.
func (c Config) removeQdiscs() error {
	var errs []error
	for _, device := range []int{c.NIC, c.Port} {
		if _, err := os.Stat(c.pin(qdiscPrefix + strconv.Itoa(device))); err != nil || device == 0 {
			continue
		}
		used := false
		for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
			all, err := filtersOf(device, parent)
			errs = append(errs, err)
			used = used || len(all) > 0 || err != nil
		}
		if used {
			continue
		}
		if err := netlink.QdiscDel(clsact(device)); err != nil && !errors.Is(err, unix.EINVAL) &&
			!errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) {
			errs = append(errs, fmt.Errorf("removing the qdisc clsact: %w", err))
		}
	}
	return errors.Join(errs...)
}
