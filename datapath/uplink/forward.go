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

// look is how often the kernel is asked whether Open vSwitch has done something: a packet may be waiting.
const look = 300 * time.Microsecond

// poll asks done until it is true, fails, or ctx ends; what says what was waited for.
func poll(ctx context.Context, what string, done func() (bool, error)) error {
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("timed out waiting for %s", what)
		case <-time.After(look):
		}
	}
}

// do carries out a step forward.
func (u *Uplink) do(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	switch name {
	case stepBridge:
		return u.makeBridge(ctx)
	case stepDevice:
		if u.journal.UplinkMode() == api.UplinkSteer {
			return with(u.device, u.readyPort)
		}
		return with(u.device, u.readyDevice)
	case stepSteer:
		return u.steer()
	case stepAddresses:
		return with(u.device, u.addressesToDevice)
	case stepPort:
		return u.takeNIC(ctx)
	case stepRoutes:
		return with(u.device, u.routesToDevice)
	case stepMute:
		return mute(ctx, u.journal.NIC.Name)
	case stepClear:
		return with(u.nic, u.clearNIC)
	}
	return fmt.Errorf("unknown step %q", name)
}

// with does a part of a step with an interface, which has to be there.
func with(find func() (netlink.Link, error), do func(netlink.Link) error) error {
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
	// In userspace it sets the interface down once more for its MAC, which takes IPv6 addresses away.
	return u.journal.DB.WaitTaken(ctx)
}

// readyDevice gives br-uplink all that the NIC has but addresses and routes, and sets it up. The kernel must make no
// address of its own: it would ask the wire whether that is in use, and the NIC would answer.
func (u *Uplink) readyDevice(device netlink.Link) error {
	j, name := u.journal, device.Attrs().Name
	if err := makeNoAddress(name); err != nil {
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

// setUp sets the bridge's own port up, with the MTU that it is to have, and the NIC.
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
	return with(u.nic, u.upNIC)
}

// makeNoAddress keeps the kernel from giving the interface a link-local address of its own.
func makeNoAddress(name string) error {
	if !kernel.HasIPv6() {
		return nil
	}
	return hoststate.SetSysctl(name, hoststate.AddrGenMode, hoststate.GenNone)
}

// addressesToDevice: the NIC has them too, for the time being. They bring no routes: those come later, and are to stay
// on the NIC until then.
func (u *Uplink) addressesToDevice(device netlink.Link) error {
	have, err := hoststate.AddressesOf(place(device))
	if err != nil {
		return err
	}
	want := u.addressesOn(place(device), unix.IFA_F_NOPREFIXROUTE|unix.IFA_F_NODAD)
	if err := hoststate.PutAddresses(want, have); err != nil {
		return err
	}
	if err := hoststate.PutNeighbours(u.journal.NIC.Neighbours, place(device)); err != nil {
		return err
	}
	// Now the kernel finds its link-local address there already, and goes on as on the NIC: it asks routers for
	// advertisements.
	if u.journal.NIC.Sysctls[hoststate.AddrGenMode] == hoststate.GenEUI64 {
		return hoststate.SetSysctl(device.Attrs().Name, hoststate.AddrGenMode, hoststate.GenEUI64)
	}
	return nil
}

// takeNIC opens the gap, and closes it in the same breath: from the moment when Open vSwitch has the NIC, what comes
// arrives on br-uplink.
func (u *Uplink) takeNIC(ctx context.Context) error {
	device, err := u.device()
	if err != nil {
		return err
	}
	moves, err := u.movesToDevice(place(device))
	if err != nil {
		return err
	}
	hoststate.CopyLiveNeighbours(u.journal.NIC.Place, place(device))
	if err := u.journal.DB.AddNIC(ctx, u.journal.Bridge, u.journal.NIC.Name); err != nil {
		return err
	}
	if err := u.waitTaken(ctx); err != nil {
		return err
	}
	// What can't be moved now is tried again, and told, by the next step.
	_ = hoststate.MoveRoutes(moves)
	if err := u.journal.DB.Retranslate(ctx, u.journal.Bridge, u.journal.NIC.Name); err != nil {
		return err
	}
	return u.journal.DB.WaitTaken(ctx)
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

// movesToDevice are those of the journal's routes, of what advertisements have made on the NIC since, and of Fairlead's
// routes to pods of other nodes, which would go with the NIC's addresses.
func (u *Uplink) movesToDevice(device hoststate.Place) ([]hoststate.RouteMove, error) {
	nic, err := u.nic()
	if err != nil {
		return nil, err
	}
	now, err := hoststate.RoutesOf(place(nic))
	if err != nil {
		return nil, err
	}
	return u.moves(now, u.journal.NIC.Routes, place(nic), device), nil
}

// moves are those of the journal's routes that do not expire, whether they are on the interface or not, and of those
// there that do, or are Fairlead's.
func (u *Uplink) moves(now, journal []hoststate.Object, from, to hoststate.Place) (moves []hoststate.RouteMove) {
	add := func(o hoststate.Object, at hoststate.Place) {
		if r, ok := hoststate.RouteOn(o, at, to, 0); ok && to.Takes(o) {
			old, _ := hoststate.RouteOn(o, at, from, 0)
			if o.Expires() || o.IsFairleads() {
				old = o
			}
			moves = append(moves, hoststate.RouteMove{Old: old, New: r})
		}
	}
	for _, o := range journal {
		if !o.Expires() {
			add(o, u.journal.NIC.Place)
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
	moves, err := u.movesToDevice(place(device))
	if err != nil {
		return err
	}
	if err := hoststate.MoveRoutes(moves); err != nil {
		return err
	}
	return hoststate.MoveRules(u.journal.NIC.Rules, u.journal.NIC.Place, place(device))
}

// clearNIC takes the addresses from the NIC. Without IPv6 it makes none, also when its link comes back.
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
	have, err := hoststate.AddressesOf(place(l))
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
