package uplink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/datapath/internal/kernel"
	"github.com/fairlead-cni/fairlead/datapath/uplink/hoststate"
	"github.com/fairlead-cni/fairlead/datapath/uplink/vport"
	"github.com/fairlead-cni/fairlead/datapath/vswitchd"
)

const (
	// releaseTimeout is how long ovs-vswitchd may take to release a device, before it is removed by force.
	releaseTimeout = 2 * time.Second
	// routerLimit is how long a router may take to answer a solicitation: 0.5 s (RFC 4861, 6.2.6), or 3 s after its last
	// advertisement.
	routerLimit = 4 * time.Second
)

// undo reverts a step.
func (u *Uplink) undo(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	switch name {
	case stepClear:
		return withLink(u.nic, u.addressesToNIC)
	case stepMute:
		return unmute(ctx)
	case stepRoutes:
		if err := withLink(u.nic, u.routesToNIC); err != nil {
			return err
		}
		// At once: replies to what now leaves through the NIC still arrive on br-uplink.
		return u.freeNIC(ctx)
	case stepPort:
		return u.freeNIC(ctx)
	case stepAddresses:
		return u.clearDevice()
	case stepBridge:
		return u.removeBridge(ctx)
	case stepSteer:
		return u.stopSteering()
	case stepNIC:
		return withLink(u.nic, func(nic netlink.Link) error { return u.finishNIC(ctx, nic) })
	}
	return fmt.Errorf("unknown step %q", name)
}

// addressesToNIC restores the NIC's addresses, while br-uplink still has them. IPv6 addresses are added without
// duplicate address detection, which would take a second, and without routes, which must still lead to br-uplink.
// Without IPv6, IPv4 addresses are restored nevertheless.
func (u *Uplink) addressesToNIC(nic netlink.Link) error {
	if err := u.upNIC(nic); err != nil {
		return err
	}
	ipv6Err := u.ipv6ToNIC(nic.Attrs().Name)
	have, err := hoststate.AddressesOf(iface(nic))
	if err != nil {
		return errors.Join(ipv6Err, err)
	}
	want, err := u.addressesBack(iface(nic), unix.IFA_F_NODAD|unix.IFA_F_NOPREFIXROUTE)
	if err != nil {
		return errors.Join(ipv6Err, err)
	}
	return errors.Join(ipv6Err, hoststate.PutAddresses(want, have))
}

// ipv6ToNIC enables IPv6 on the NIC, if it had IPv6, but without generating addresses.
func (u *Uplink) ipv6ToNIC(name string) error {
	disabled := u.journal.NIC.Sysctls[hoststate.DisableIPv6]
	if !kernel.HasIPv6() || disabled == "1" {
		return nil
	}
	if now, err := hoststate.Sysctl(name, hoststate.DisableIPv6); err != nil || now == "1" {
		if err := hoststate.SetSysctl(name, hoststate.AddrGenMode, hoststate.GenNone); err != nil {
			return err
		}
	}
	return hoststate.SetSysctl(name, hoststate.DisableIPv6, disabled)
}

// addressesBack returns the journal's addresses, with their current lifetimes, and those added to br-uplink since. more
// are extra flags for the IPv6 ones.
func (u *Uplink) addressesBack(nic hoststate.Iface, more uint32) ([]hoststate.Object, error) {
	j := u.journal
	var now []hoststate.Object
	at := hoststate.Iface{}
	if device, err := findLink(j.Bridge.Name); err != nil {
		return nil, err
	} else if device != nil {
		at = iface(device)
		if now, err = hoststate.AddressesOf(at); err != nil {
			return nil, err
		}
	}
	var want []hoststate.Object
	put := func(o hoststate.Object, from hoststate.Iface, age time.Duration) {
		flags := more
		if !o.IsIPv6() {
			flags = 0
		}
		if a, ok := hoststate.AddressOn(o, from, nic, flags, age); ok && nic.Supports(o) {
			want = append(want, a)
		}
	}
	for _, o := range j.NIC.Addresses {
		put(u.renewed(o, now))
	}
	for _, o := range now {
		if !hoststate.Has(j.NIC.Addresses, o) && !o.FromRA() && !o.KernelGenerated() {
			put(o, at, 0)
		}
	}
	return want, nil
}

// renewed returns the journal's address with the current lifetimes of br-uplink's, and their age.
func (u *Uplink) renewed(o hoststate.Object, now []hoststate.Object) (
	hoststate.Object, hoststate.Iface, time.Duration) {
	i := slices.IndexFunc(now, func(n hoststate.Object) bool { return hoststate.SameAddress(n, o) })
	if i >= 0 && o.Expires() {
		return hoststate.WithLifetimesOf(o, now[i]), u.journal.NIC.Iface, 0
	}
	return o, u.journal.NIC.Iface, u.elapsed()
}

// upNIC sets the NIC up, if it was up before: a NIC that is down accepts no routes, and loses its IPv6 addresses.
func (u *Uplink) upNIC(nic netlink.Link) error {
	if u.journal.NIC.Flags&unix.IFF_UP == 0 || nic.Attrs().RawFlags&unix.IFF_UP != 0 {
		return nil
	}
	if err := netlink.LinkSetUp(nic); err != nil {
		return fmt.Errorf("setting %s up: %w", nic.Attrs().Name, err)
	}
	return nil
}

func (u *Uplink) routesToNIC(nic netlink.Link) error {
	if err := u.upNIC(nic); err != nil {
		return err
	}
	device, err := findLink(u.journal.Bridge.Name)
	if err != nil {
		return err
	}
	from := hoststate.Iface{Name: u.journal.Bridge.Name}
	var now []hoststate.Object
	if device != nil {
		from = iface(device)
		if now, err = hoststate.RoutesOf(from); err != nil {
			return err
		}
		hoststate.CopyLiveNeighbours(from, iface(nic))
	}
	moves := u.moves(now, u.journal.NIC.Routes, from, iface(nic))
	for _, o := range u.addedRoutes(now, from) {
		if r, _ := hoststate.RouteOn(o, from, iface(nic), 0); iface(nic).Supports(o) {
			moves = append(moves, hoststate.RouteMove{Old: o, New: r})
		}
	}
	return errors.Join(hoststate.MoveRoutes(moves), u.rulesToNIC())
}

func (u *Uplink) rulesToNIC() error {
	var rules []hoststate.Object
	from := hoststate.Iface{Name: u.journal.Bridge.Name}
	for _, r := range u.journal.NIC.Rules {
		rules = append(rules, hoststate.RuleOn(r, u.journal.NIC.Iface, from))
	}
	return hoststate.MoveRules(rules, from, u.journal.NIC.Iface)
}

// addedRoutes returns the routes added to br-uplink since. The kernel's and Fairlead's own are deleted with it.
func (u *Uplink) addedRoutes(now []hoststate.Object, device hoststate.Iface) (added []hoststate.Object) {
	known := u.routesOn(device)
	for _, o := range now {
		if !o.Expires() && o.Protocol() != unix.RTPROT_KERNEL && !o.IsFairleads() && !hoststate.HasRoute(known, o) {
			added = append(added, o)
		}
	}
	return added
}

// freeNIC removes the NIC from Open vSwitch: from the database first, or ovs-vswitchd attaches it again when it starts.
func (u *Uplink) freeNIC(ctx context.Context) error {
	j := u.journal
	rowErr := u.noDB
	if rowErr == nil {
		rowErr = j.DB.RemoveNIC(ctx, j.Bridge, j.NIC.Name)
	}
	if rowErr != nil {
		rowErr = fmt.Errorf("%w. Open vSwitch attaches %s again when it starts: repeat this when it runs", rowErr, j.NIC.Name)
	}
	if u.mutes() {
		return rowErr // it only receives copies of the frames
	}
	nic, err := u.nic()
	if err != nil {
		return errors.Join(rowErr, err)
	}
	return errors.Join(rowErr, u.waitReleased(ctx, j.NIC.Name, func() (bool, error) {
		nic, err = findLink(j.NIC.Name)
		if err != nil || nic == nil {
			return true, err
		}
		in, err := vport.Attached(nic)
		return !in, err
	}, vport.Delete))
}

// waitReleased waits until ovs-vswitchd has released a device, and removes it by force if ovs-vswitchd is down, hangs,
// or takes too long.
func (u *Uplink) waitReleased(ctx context.Context, name string, gone func() (bool, error),
	force func(string) error) error {
	if ok, err := gone(); ok || err != nil {
		return err
	}
	if u.journal.Yielded != hungStart && vswitchd.Running(u.journal.DB.RunDir) {
		ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
		defer cancel()
		if err := poll(ctx, "ovs-vswitchd to release "+name, gone); err == nil {
			return nil
		}
	}
	return force(name)
}

func (u *Uplink) clearDevice() error {
	device, err := findLink(u.journal.Bridge.Name)
	if err != nil || device == nil {
		return err
	}
	if err := disableAddrGen(device.Attrs().Name); err != nil { // while it is being deleted
		return err
	}
	return removeAddresses(device)
}

func (u *Uplink) removeBridge(ctx context.Context) error {
	j := u.journal
	if nic, err := findLink(j.NIC.Name); err == nil && nic == nil && u.ThisBoot() {
		if err := u.rulesToNIC(); err != nil { // they name it even after it is deleted
			return err
		}
	}
	rowErr := u.noDB
	if rowErr == nil {
		rowErr = j.DB.Remove(ctx, j.Bridge)
	}
	err := u.waitReleased(ctx, j.Bridge.Name, func() (bool, error) {
		l, err := findLink(j.Bridge.Name)
		return l == nil, err
	}, vport.RemoveDevice)
	return errors.Join(rowErr, err)
}

// finishNIC restores what would have interfered before: the addresses' own flags, the link's flags (ovs-vswitchd leaves
// "promisc" behind when it is killed), neighbours, and address generation by the kernel.
func (u *Uplink) finishNIC(ctx context.Context, nic netlink.Link) error {
	j, name := u.journal, nic.Attrs().Name
	want, err := u.addressesBack(iface(nic), 0)
	if err != nil {
		return err
	}
	errs := []error{u.setFlags(nic), hoststate.ChangeAddresses(want),
		hoststate.PutNeighbours(j.NIC.Neighbours, iface(nic))}
	for _, parameter := range []string{hoststate.DisableIPv6, hoststate.AddrGenMode} {
		if value, known := j.NIC.Sysctls[parameter]; known {
			errs = append(errs, hoststate.SetSysctl(name, parameter, value))
		}
	}
	extra, err := u.extraRoutes(iface(nic))
	errs = append(errs, err, hoststate.Remove(extra))
	if slices.ContainsFunc(j.NIC.Routes, hoststate.Object.FromRouter) {
		hoststate.AwaitRouter(ctx, iface(nic), routerLimit)
	}
	return errors.Join(errs...)
}

func (u *Uplink) setFlags(nic netlink.Link) error {
	want, have := u.journal.NIC.Flags, nic.Attrs().RawFlags
	var errs []error
	for _, f := range []struct {
		bit     uint32
		on, off func(netlink.Link) error
	}{
		{unix.IFF_PROMISC, netlink.SetPromiscOn, netlink.SetPromiscOff},
		{unix.IFF_ALLMULTI, netlink.LinkSetAllmulticastOn, netlink.LinkSetAllmulticastOff},
		{unix.IFF_UP, netlink.LinkSetUp, netlink.LinkSetDown},
	} {
		switch {
		case want&f.bit != 0 && have&f.bit == 0:
			errs = append(errs, f.on(nic))
		case want&f.bit == 0 && have&f.bit != 0:
			errs = append(errs, f.off(nic))
		}
	}
	return errors.Join(errs...)
}

func parseMAC(s string) (net.HardwareAddr, error) {
	mac, err := net.ParseMAC(s)
	if err == nil && bytes.Equal(mac, make([]byte, len(mac))) {
		err = errors.New("it is zero")
	}
	return mac, err
}
