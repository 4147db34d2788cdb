package uplink

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/uplink/hoststate"
	"github.com/fairlead-cni/fairlead/datapath/uplink/rows"
	"github.com/fairlead-cni/fairlead/datapath/uplink/vport"
)

// observe reads everything that Next needs. A database error is part of it.
func (u *Uplink) observe(ctx context.Context) (o Observed, dbErr, err error) {
	j := u.journal
	o.SameBoot = j.BootID == u.bootID
	s, dbErr := rows.State{}, u.noDB
	if dbErr == nil {
		s, dbErr = j.DB.Read(ctx, j.Bridge, j.NIC.Name)
	}
	o.RowsKnown = dbErr == nil
	o.Bridge, o.Rows, o.Port, o.Wrong = s.Complete, s.Ours, s.NIC && s.Ours, s.Wrong
	nic, err := findLink(j.NIC.Name)
	if err != nil {
		return o, dbErr, err
	}
	device, err := findLink(j.Bridge.Name)
	if err != nil {
		return o, dbErr, err
	}
	o.NIC, o.Device = nic != nil, device != nil
	if j.UplinkMode() == api.UplinkSteer {
		err = u.observeSteer(&o, nic, device)
	} else {
		err = u.observeBridge(&o, s, nic, device)
	}
	o.Ready = o.Ready && !u.nicDown(nic)
	return o, dbErr, err
}

// observeBridge adds what mode bridge needs. nic and device may be nil.
func (u *Uplink) observeBridge(o *Observed, s rows.State, nic, device netlink.Link) (err error) {
	j := u.journal
	o.Mutes = j.Bridge.Datapath == api.DatapathNetdev
	if o.Mutes {
		var text string
		o.Muted, text = muted()
		o.Muted = o.Muted && (goesBack(*j, *o) || strings.Contains(text, `"`+j.NIC.Name+`"`))
		o.Taken = s.OFPort > 0
	} else if nic != nil {
		if o.Taken, err = vport.Attached(nic); err != nil {
			return err
		}
	}
	if o.Taken && !s.Ours && s.Elsewhere != "" { // another bridge has it: not ours to free
		o.Taken = false
	}
	if device != nil {
		err = u.observeDevice(o, device)
	} else {
		o.Bare = true
	}
	if err == nil && nic != nil {
		err = u.observeNIC(o, nic)
	}
	return err
}

func iface(l netlink.Link) hoststate.Iface {
	return hoststate.Iface{Name: l.Attrs().Name, Index: l.Attrs().Index}
}

func (u *Uplink) observeDevice(o *Observed, device netlink.Link) error {
	j, a := u.journal, device.Attrs()
	o.Ready = a.RawFlags&unix.IFF_UP != 0 && a.HardwareAddr.String() == j.NIC.MAC && a.MTU == j.Bridge.MTU
	addresses, err := hoststate.AddressesOf(iface(device))
	if err != nil {
		return err
	}
	routes, err := hoststate.RoutesOf(iface(device))
	if err != nil {
		return err
	}
	o.Bare = len(addresses) == 0
	mode, err := hoststate.Sysctl(a.Name, hoststate.AddrGenMode)
	generates := err != nil || mode == hoststate.GenEUI64 // without IPv6 there is no such parameter
	o.OnDevice.Addresses = hasAll(u.addressesOn(iface(device), 0), addresses, hoststate.Has) &&
		(generates || j.NIC.Sysctls[hoststate.AddrGenMode] != hoststate.GenEUI64)
	o.OnDevice.Routes = hasAll(u.routesOn(iface(device)), routes, hoststate.HasRoute)
	rules, err := hoststate.RulesOf(iface(device))
	if err != nil {
		return err
	}
	for _, r := range j.NIC.Rules {
		o.OnDevice.Routes = o.OnDevice.Routes && hoststate.HasRule(rules, hoststate.RuleOn(r, j.NIC.Iface, iface(device)))
	}
	return nil
}

func (u *Uplink) observeNIC(o *Observed, nic netlink.Link) error {
	j := u.journal
	addresses, err := hoststate.AddressesOf(iface(nic))
	if err != nil {
		return err
	}
	routes, err := hoststate.RoutesOf(iface(nic))
	if err != nil {
		return err
	}
	rules, err := hoststate.RulesOf(iface(nic))
	if err != nil {
		return err
	}
	// A rule is added with the new name first, so both exist if this process dies in between.
	o.OnDevice.Routes = o.OnDevice.Routes &&
		!slices.ContainsFunc(j.NIC.Rules, func(r hoststate.Object) bool { return hoststate.HasRule(rules, r) })
	disabled, err := hoststate.Sysctl(nic.Attrs().Name, hoststate.DisableIPv6)
	noIPv6 := err != nil || disabled == "1" // without IPv6 there is no such parameter
	o.NICBare = noIPv6 && len(addresses) == 0
	o.OnNIC.Addresses = hasAll(u.addressesOn(iface(nic), 0), addresses, hoststate.Has)
	o.OnNIC.Routes = hasAll(u.routesOn(iface(nic)), routes, hoststate.HasRoute) &&
		hasAll(j.NIC.Rules, rules, hoststate.HasRule)
	left, err := u.leftOnDevice()
	if err != nil {
		return err
	}
	o.OnNIC.Routes = o.OnNIC.Routes && !left
	o.NICWhole, err = u.nicRestored(nic, addresses)
	return err
}

// leftOnDevice reports whether a route or rule of the journal still refers to br-uplink.
func (u *Uplink) leftOnDevice() (bool, error) {
	rules, err := hoststate.RulesOf(hoststate.Iface{Name: u.journal.Bridge.Name}) // they outlive the interface
	if err != nil || len(rules) > 0 {
		return true, err
	}
	device, err := findLink(u.journal.Bridge.Name)
	if err != nil || device == nil {
		return false, err
	}
	routes, err := hoststate.RoutesOf(iface(device))
	if err != nil {
		return false, err
	}
	want := u.routesOn(iface(device))
	return slices.ContainsFunc(routes, func(r hoststate.Object) bool {
		return hoststate.HasRoute(want, r) && !r.Expires() && u.journal.NIC.Supports(r)
	}), nil
}

// nicRestored compares what restore sets last.
func (u *Uplink) nicRestored(nic netlink.Link, addresses []hoststate.Object) (bool, error) {
	j := u.journal
	const flags = unix.IFF_PROMISC | unix.IFF_ALLMULTI | unix.IFF_UP
	if nic.Attrs().RawFlags&flags != j.NIC.Flags&flags {
		return false, nil
	}
	for _, parameter := range []string{hoststate.DisableIPv6, hoststate.AddrGenMode} {
		if now, err := hoststate.Sysctl(nic.Attrs().Name, parameter); err == nil && now != j.NIC.Sysctls[parameter] {
			return false, nil
		}
	}
	for _, want := range u.addressesOn(iface(nic), 0) {
		if !slices.ContainsFunc(addresses, func(o hoststate.Object) bool { return hoststate.EqualAddresses(o, want) }) {
			return false, nil
		}
	}
	extra, err := u.extraRoutes(iface(nic))
	if err != nil || len(extra) > 0 {
		return false, err
	}
	return hoststate.HasNeighbours(j.NIC.Neighbours, iface(nic))
}

// extraRoutes returns the kernel's routes on the NIC that were not there before: it adds one for each address.
func (u *Uplink) extraRoutes(nic hoststate.Iface) ([]hoststate.Object, error) {
	have, err := hoststate.RoutesOf(nic)
	if err != nil {
		return nil, err
	}
	var before []hoststate.Object
	for _, o := range u.journal.NIC.Routes {
		r, _ := hoststate.RouteOn(o, u.journal.NIC.Iface, hoststate.Iface{Name: nic.Name, Index: nic.Index}, 0)
		before = append(before, r)
	}
	return slices.DeleteFunc(have, func(o hoststate.Object) bool {
		return o.Protocol() != unix.RTPROT_KERNEL || o.Expires() || hoststate.HasRoute(before, o)
	}), nil
}

// hasAll reports whether have contains all of want that can be expected.
func hasAll(want, have []hoststate.Object, has func(have []hoststate.Object, want hoststate.Object) bool) bool {
	return !slices.ContainsFunc(want, func(o hoststate.Object) bool { return !has(have, o) })
}

// addressesOn returns the journal's addresses as requests for an interface. Once moved, expiring ones are left to the
// kernel, which renews them or lets them expire.
func (u *Uplink) addressesOn(p hoststate.Iface, more uint32) (list []hoststate.Object) {
	j := u.journal
	for _, o := range j.NIC.Addresses {
		if o.Expires() && j.Phase == Attached || !p.Supports(o) {
			continue
		}
		if a, ok := hoststate.AddressOn(o, j.NIC.Iface, p, more, u.elapsed()); ok {
			list = append(list, a)
		}
	}
	return list
}

// routesOn returns the journal's routes as requests for an interface, without those that expire.
func (u *Uplink) routesOn(p hoststate.Iface) (list []hoststate.Object) {
	for _, o := range u.journal.NIC.Routes {
		if !o.Expires() && p.Supports(o) {
			r, _ := hoststate.RouteOn(o, u.journal.NIC.Iface, p, 0)
			list = append(list, r)
		}
	}
	return list
}

// elapsed returns the age of the journal's lifetimes.
func (u *Uplink) elapsed() time.Duration { return hoststate.SinceBoot() - u.journal.NIC.ReadAt }
