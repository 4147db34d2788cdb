package uplink

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/datapath/internal/kernel"
)

// Numbers of linux/openvswitch.h.
const (
	ovsVportCmdDel   = 2
	ovsVportAttrName = 3
	ovsHeaderLen     = 4
)

// deleteVport takes a device out of the kernel's datapath (OVS_VPORT_CMD_DEL), as "ovs-dpctl del-if" does. It needs no
// ovs-vswitchd. "ip link set NIC nomaster" is refused by the kernel.
func deleteVport(name string) error {
	family, err := netlink.GenlFamilyGet("ovs_vport")
	if err != nil {
		return fmt.Errorf("freeing %s: the kernel's openvswitch does not answer: %w", name, err)
	}
	req := nl.NewNetlinkRequest(int(family.ID), unix.NLM_F_ACK)
	req.AddData(&nl.Genlmsg{Command: ovsVportCmdDel, Version: 1})
	header := make([]byte, ovsHeaderLen) // datapath 0: by name alone
	req.AddRawData(append(header, nl.NewRtAttr(ovsVportAttrName, nl.ZeroTerminated(name)).Serialize()...))
	_, err = req.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("freeing %s from the kernel's datapath: %w", name, err)
	}
	return nil
}

// inDatapath reports whether the link is a port of the kernel's datapath.
func inDatapath(l netlink.Link) (bool, error) {
	if l.Attrs().MasterIndex == 0 {
		return false, nil
	}
	master, err := netlink.LinkByIndex(l.Attrs().MasterIndex)
	if err != nil {
		return false, fmt.Errorf("looking up the master of %s: %w", l.Attrs().Name, err)
	}
	return master.Type() == "openvswitch", nil
}

// findLink returns nil if there is no link of that name.
func findLink(name string) (netlink.Link, error) {
	l, err := kernel.Dump(func() (netlink.Link, error) { return netlink.LinkByName(name) })
	if gone := (netlink.LinkNotFoundError{}); errors.As(err, &gone) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking up interface %s: %w", name, err)
	}
	return l, nil
}

// removeDevice removes the bridge's device where no ovs-vswitchd does it.
func removeDevice(name string) error {
	l, err := findLink(name)
	if err != nil || l == nil {
		return err
	}
	if l.Type() == "openvswitch" { // the kernel's datapath; such a port has no master
		return deleteVport(name)
	}
	// A tap of the userspace datapath outlives ovs-vswitchd.
	if err := netlink.LinkDel(l); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("deleting interface %s: %w", name, err)
	}
	return nil
}

// vswitchdRuns reports whether an ovs-vswitchd lives: it holds a lock on its PID file, also in another container.
func vswitchdRuns(runDir string) bool {
	f, err := os.Open(filepath.Join(runDir, "ovs-vswitchd.pid"))
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if err != nil {
		return true // unknown
	}
	defer f.Close()
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_GETLK, &lock); err != nil {
		return true
	}
	return lock.Type != unix.F_UNLCK
}
