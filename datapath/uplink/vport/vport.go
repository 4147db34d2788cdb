// Package vport removes what ovs-vswitchd has created in the kernel, without ovs-vswitchd: ports of the kernel's
// datapath, the datapath itself, and the taps of the userspace one. It needs only the kernel module openvswitch.
package vport

import (
	"encoding/binary"
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
	ovsVportCmdGet   = 3
	ovsVportAttrPort = 1
	ovsVportAttrName = 3
	ovsHeaderLen     = 4 // the datapath's interface index; 0: by name alone
	genlHeaderLen    = 4
)

// Delete removes a device from the kernel's datapath (OVS_VPORT_CMD_DEL), as "ovs-dpctl del-if" does. It needs no
// ovs-vswitchd. The kernel refuses "ip link set NIC nomaster".
func Delete(name string) error {
	err := deleteByName("ovs_vport", ovsVportCmdDel, ovsVportAttrName, name)
	if errors.Is(err, unix.ENODEV) {
		err = deleteRenamed(name)
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("removing %s from the kernel's datapath: %w", name, err)
	}
	return nil
}

// deleteRenamed is Delete for a renamed device: the kernel then finds it only by its port number.
func deleteRenamed(name string) error {
	l, err := kernel.FindLink(name)
	if err != nil || l == nil || l.Attrs().MasterIndex == 0 {
		return err
	}
	datapath := binary.NativeEndian.AppendUint32(nil, uint32(l.Attrs().MasterIndex))
	ports, err := genl("ovs_vport", ovsVportCmdGet, unix.NLM_F_DUMP, datapath)
	if err != nil {
		return err
	}
	for _, port := range ports {
		attrs, err := nl.ParseRouteAttrAsMap(port[genlHeaderLen+ovsHeaderLen:])
		if err != nil {
			return err
		}
		if unix.ByteSliceToString(attrs[ovsVportAttrName].Value) == name {
			number := nl.NewRtAttr(ovsVportAttrPort, attrs[ovsVportAttrPort].Value).Serialize()
			_, err = genl("ovs_vport", ovsVportCmdDel, unix.NLM_F_ACK, append(datapath, number...))
			return err
		}
	}
	return nil
}

// RemoveDatapath removes what is left of the datapath that all bridges share: of the kernel's, as "ovs-dpctl del-dp"
// does, and of the userspace one. Use it only on a node without ovs-vswitchd, which would not recover from that.
func RemoveDatapath() error {
	if err := removeKernelDatapath(); err != nil {
		return err
	}
	userspace, err := kernel.FindLink("ovs-netdev")
	if err != nil || userspace == nil || userspace.Type() != "tuntap" {
		return err
	}
	return RemoveDevice("ovs-netdev")
}

func removeKernelDatapath() error {
	const name = "ovs-system" // ovs-vswitchd's
	l, err := kernel.FindLink(name)
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
	data := append(make([]byte, ovsHeaderLen), nl.NewRtAttr(attr, nl.ZeroTerminated(name)).Serialize()...)
	_, err := genl(family, command, unix.NLM_F_ACK, data)
	return err
}

// genl sends a request to the kernel's openvswitch, and returns the replies with their headers.
func genl(family string, command uint8, flags int, data []byte) ([][]byte, error) {
	f, err := netlink.GenlFamilyGet(family)
	if err != nil {
		return nil, fmt.Errorf("the kernel's openvswitch does not answer: %w", err)
	}
	req := nl.NewNetlinkRequest(int(f.ID), flags)
	req.AddData(&nl.Genlmsg{Command: command, Version: 1})
	req.AddRawData(data)
	return req.Execute(unix.NETLINK_GENERIC, 0)
}

// Attached reports whether the link is a port of the kernel's datapath.
func Attached(l netlink.Link) (bool, error) {
	if l.Attrs().MasterIndex == 0 {
		return false, nil
	}
	master, err := netlink.LinkByIndex(l.Attrs().MasterIndex)
	if err != nil {
		return false, fmt.Errorf("looking up the master of %s: %w", l.Attrs().Name, err)
	}
	return master.Type() == "openvswitch", nil
}

// RemoveDevice removes an interface that ovs-vswitchd has created, if no ovs-vswitchd does it.
func RemoveDevice(name string) error {
	l, err := kernel.FindLink(name)
	if err != nil || l == nil {
		return err
	}
	if l.Type() == "openvswitch" { // the kernel's datapath; such a port has no master
		return Delete(name)
	}
	// A tap of the userspace datapath outlives ovs-vswitchd.
	if err := netlink.LinkDel(l); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("deleting interface %s: %w", name, err)
	}
	return nil
}
