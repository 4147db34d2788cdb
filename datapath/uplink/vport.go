package uplink

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/datapath/internal/kernel"
)

// Numbers of linux/openvswitch.h.
const (
	ovsDPCmdDel      = 2
	ovsDPAttrName    = 1
	ovsVportCmdDel   = 2
	ovsVportAttrName = 3
	ovsHeaderLen     = 4
)

// deleteVport takes a device out of the kernel's datapath (OVS_VPORT_CMD_DEL), as "ovs-dpctl del-if" does. It needs no
// ovs-vswitchd. "ip link set NIC nomaster" is refused by the kernel.
func deleteVport(name string) error {
	err := deleteByName("ovs_vport", ovsVportCmdDel, ovsVportAttrName, name)
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("removing %s from the kernel's datapath: %w", name, err)
	}
	return nil
}

// RemoveDatapath removes what is left of the datapath that all bridges share: of the kernel's, as "ovs-dpctl del-dp"
// does, and of the userspace one. It is for a node without ovs-vswitchd, which would not recover from that.
func RemoveDatapath() error {
	if err := removeKernelDatapath(); err != nil {
		return err
	}
	userspace, err := findLink("ovs-netdev")
	if err != nil || userspace == nil || userspace.Type() != "tuntap" {
		return err
	}
	return RemoveDevice("ovs-netdev")
}

func removeKernelDatapath() error {
	const name = "ovs-system" // ovs-vswitchd's
	l, err := findLink(name)
	if err != nil || l == nil || l.Type() != "openvswitch" {
		return err
	}
	err = deleteByName("ovs_datapath", ovsDPCmdDel, ovsDPAttrName, name)
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("deleting the kernel's datapath %s: %w", name, err)
	}
	return nil
}

// deleteByName asks the kernel's openvswitch to delete something.
func deleteByName(family string, command uint8, attr int, name string) error {
	f, err := netlink.GenlFamilyGet(family)
	if err != nil {
		return fmt.Errorf("the kernel's openvswitch does not answer: %w", err)
	}
	req := nl.NewNetlinkRequest(int(f.ID), unix.NLM_F_ACK)
	req.AddData(&nl.Genlmsg{Command: command, Version: 1})
	header := make([]byte, ovsHeaderLen) // datapath 0: by name alone
	req.AddRawData(append(header, nl.NewRtAttr(attr, nl.ZeroTerminated(name)).Serialize()...))
	_, err = req.Execute(unix.NETLINK_GENERIC, 0)
	return err
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

// RemoveDevice removes an interface that ovs-vswitchd has made, where no ovs-vswitchd does it.
func RemoveDevice(name string) error {
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
