package uplink

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/internal/kernel"
	"github.com/fairlead-cni/fairlead/datapath/uplink/hoststate"
	"github.com/fairlead-cni/fairlead/datapath/uplink/vport"
)

// pollInterval is how often to check whether Open vSwitch has done something: short, since packets may be waiting.
const pollInterval = 300 * time.Microsecond

// poll calls done until it returns true, fails, or ctx ends; what describes what it waits for.
func poll(ctx context.Context, what string, done func() (bool, error)) error {
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("timed out waiting for %s", what)
		case <-time.After(pollInterval):
		}
	}
}

func (u *Uplink) do(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	switch name {
	case stepBridge:
		return u.makeBridge(ctx)
	case stepDevice:
		if u.journal.UplinkMode() == api.UplinkSteer {
			return withLink(u.device, u.readyPort)
		}
		return withLink(u.device, u.readyDevice)
	case stepSteer:
		return u.steer()
	case stepAddresses:
		return withLink(u.device, u.addressesToDevice)
	case stepPort:
		return u.takeNIC(ctx)
	case stepRoutes:
		return withLink(u.device, u.routesToDevice)
	case stepMute:
		return mute(ctx, u.journal.NIC.Name)
	case stepClear:
		return withLink(u.nic, u.clearNIC)
	}
	return fmt.Errorf("unknown step %q", name)
}

// withLink does a part of a step with an interface, which must exist.
func withLink(find func() (netlink.Link, error), do func(netlink.Link) error) error {
	l, err := find()
	if err != nil {
		return err
	}
	return do(l)
}

func (u *Uplink) makeBridge(ctx context.Context) error {
	if err := u.journal.DB.Ensure(ctx, u.journal.Bridge, u.journal.NIC.Name); err != nil {
		return err
	}
	name := u.journal.Bridge.Name
	if err := poll(ctx, "ovs-vswitchd to create interface "+name+" (see its log)", func() (bool, error) {
		l, err := findLink(name)
		return l != nil, err
	}); err != nil {
		return err
	}
	// On the userspace datapath it sets the interface down once more to set its MAC, which removes IPv6 addresses.
	return u.journal.DB.WaitApplied(ctx)
}

// readyDevice gives br-uplink all that the NIC has except addresses and routes, and sets it up. The kernel must
// generate no address: duplicate address detection would probe it on the wire, and the NIC would answer.
func (u *Uplink) readyDevice(device netlink.Link) error {
	j, name := u.journal, device.Attrs().Name
	if err := disableAddrGen(name); err != nil {
		return err
	}
	if device.Attrs().HardwareAddr.String() != j.NIC.MAC {
		mac, err := parseMAC(j.NIC.MAC)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetHardwareAddr(device, mac); err != nil {
			return fmt.Errorf("setting the MAC of %s: %w", name, err)
		}
	}
	hoststate.CopySysctls(name, j.NIC.Sysctls)
	hoststate.KeepNeighbours(name)
	if disabled, known := j.NIC.Sysctls[hoststate.DisableIPv6]; known {
		if err := hoststate.SetSysctl(name, hoststate.DisableIPv6, disabled); err != nil {
			return err
		}
	}
	return u.setUp(device)
}

// setUp sets the bridge's own port up, with its MTU, and the NIC.
func (u *Uplink) setUp(device netlink.Link) error {
	name, mtu := device.Attrs().Name, u.journal.Bridge.MTU
	if device.Attrs().MTU != mtu {
		if err := netlink.LinkSetMTU(device, mtu); err != nil {
			return fmt.Errorf("setting the MTU of %s: %w", name, err)
		}
	}
	if err := netlink.LinkSetUp(device); err != nil {
		return fmt.Errorf("setting %s up: %w", name, err)
	}
	return withLink(u.nic, u.upNIC)
}

// disableAddrGen keeps the kernel from generating a link-local address for the interface.
func disableAddrGen(name string) error {
	if !kernel.HasIPv6() {
		return nil
	}
	return hoststate.SetSysctl(name, hoststate.AddrGenMode, hoststate.GenNone)
}

// addressesToDevice adds the addresses to br-uplink; for now the NIC keeps them too. They add no routes: those follow
// later, and must stay on the NIC until then.
func (u *Uplink) addressesToDevice(device netlink.Link) error {
	have, err := hoststate.AddressesOf(iface(device))
	if err != nil {
		return err
	}
	want := u.addressesOn(iface(device), unix.IFA_F_NOPREFIXROUTE|unix.IFA_F_NODAD)
	if err := hoststate.PutAddresses(want, have); err != nil {
		return err
	}
	if err := hoststate.PutNeighbours(u.journal.NIC.Neighbours, iface(device)); err != nil {
		return err
	}
	// Now the kernel finds its link-local address in place, and continues as on the NIC: it solicits routers.
	if u.journal.NIC.Sysctls[hoststate.AddrGenMode] == hoststate.GenEUI64 {
		return hoststate.SetSysctl(device.Attrs().Name, hoststate.AddrGenMode, hoststate.GenEUI64)
	}
	return nil
}

// takeNIC starts the interruption and ends it at once: from the moment when Open vSwitch has the NIC, incoming packets
// arrive on br-uplink.
func (u *Uplink) takeNIC(ctx context.Context) error {
	device, err := u.device()
	if err != nil {
		return err
	}
	moves, err := u.movesToDevice(iface(device))
	if err != nil {
		return err
	}
	hoststate.CopyLiveNeighbours(u.journal.NIC.Iface, iface(device))
	if err := u.journal.DB.AddNIC(ctx, u.journal.Bridge, u.journal.NIC.Name); err != nil {
		return err
	}
	if err := u.waitTaken(ctx); err != nil {
		return err
	}
	// What cannot be moved now is retried, and reported, by the next step.
	_ = hoststate.MoveRoutes(moves)
	if err := u.journal.DB.Retranslate(ctx, u.journal.Bridge, u.journal.NIC.Name); err != nil {
		return err
	}
	return u.journal.DB.WaitApplied(ctx)
}

func (u *Uplink) waitTaken(ctx context.Context) error {
	j := u.journal
	return poll(ctx, "Open vSwitch to attach "+j.NIC.Name, func() (bool, error) {
		if !u.mutes() {
			nic, err := findLink(j.NIC.Name)
			if err != nil {
				return false, err
			}
			if nic == nil {
				return false, errNICGone
			}
			return vport.Attached(nic)
		}
		s, err := j.DB.Read(ctx, j.Bridge, j.NIC.Name)
		if err == nil && s.Error != "" {
			err = errors.New("ovs-vswitchd: " + s.Error)
		}
		return s.OFPort > 0, err
	})
}

// movesToDevice returns the moves of the journal's routes, of routes from advertisements on the NIC since, and of
// Fairlead's routes to pods on other nodes, which would be deleted with the NIC's addresses.
func (u *Uplink) movesToDevice(device hoststate.Iface) ([]hoststate.RouteMove, error) {
	nic, err := u.nic()
	if err != nil {
		return nil, err
	}
	now, err := hoststate.RoutesOf(iface(nic))
	if err != nil {
		return nil, err
	}
	return u.moves(now, u.journal.NIC.Routes, iface(nic), device), nil
}

// moves returns the moves of the journal's routes that do not expire, whether or not they are on the interface, and of
// those on it that do, or are Fairlead's.
func (u *Uplink) moves(now, journal []hoststate.Object, from, to hoststate.Iface) (moves []hoststate.RouteMove) {
	add := func(o hoststate.Object, at hoststate.Iface) {
		if r, ok := hoststate.RouteOn(o, at, to, 0); ok && to.Supports(o) {
			old, _ := hoststate.RouteOn(o, at, from, 0)
			if o.Expires() || o.IsFairleads() {
				old = o
			}
			moves = append(moves, hoststate.RouteMove{Old: old, New: r})
		}
	}
	for _, o := range journal {
		if !o.Expires() {
			add(o, u.journal.NIC.Iface)
		}
	}
	for _, o := range now {
		if o.Expires() || o.IsFairleads() {
			add(o, from)
		}
	}
	return moves
}

func (u *Uplink) routesToDevice(device netlink.Link) error {
	moves, err := u.movesToDevice(iface(device))
	if err != nil {
		return err
	}
	if err := hoststate.MoveRoutes(moves); err != nil {
		return err
	}
	return hoststate.MoveRules(u.journal.NIC.Rules, u.journal.NIC.Iface, iface(device))
}

// clearNIC removes the addresses from the NIC, and disables IPv6 there so that none is generated, even when its link
// comes back.
func (u *Uplink) clearNIC(nic netlink.Link) error {
	if kernel.HasIPv6() {
		if err := hoststate.SetSysctl(nic.Attrs().Name, hoststate.AddrGenMode, hoststate.GenNone); err != nil {
			return err
		}
		if err := hoststate.SetSysctl(nic.Attrs().Name, hoststate.DisableIPv6, "1"); err != nil {
			return err
		}
	}
	return removeAddresses(nic)
}

func removeAddresses(l netlink.Link) error {
	have, err := hoststate.AddressesOf(iface(l))
	if err != nil {
		return err
	}
	return hoststate.Remove(have)
}

// findLink returns nil if there is no link of that name.
func findLink(name string) (netlink.Link, error) { return kernel.FindLink(name) }

func (u *Uplink) device() (netlink.Link, error) {
	l, err := findLink(u.journal.Bridge.Name)
	if err == nil && l == nil {
		err = fmt.Errorf("there is no interface %s", u.journal.Bridge.Name)
	}
	return l, err
}

func (u *Uplink) nic() (netlink.Link, error) {
	l, err := findLink(u.journal.NIC.Name)
	if err == nil && l == nil {
		err = errNICGone
	}
	return l, err
}
