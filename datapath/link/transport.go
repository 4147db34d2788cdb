package link

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/internal/netaddr"
)

// Transport is the transport interface: it carries tunnel traffic to other nodes.
type Transport struct {
	Name  string
	Index int
	// MTU is in bytes.
	MTU int
	// IPv4 and IPv6 are the tunnel endpoints; invalid where the interface
	// has no address of the family.
	IPv4, IPv6 netip.Addr
	// Subnets are the networks of all its addresses, each once, in the
	// kernel's order.
	Subnets []netip.Prefix
}

// device is an interface with the addresses that others can reach it by.
type device struct {
	Transport
	addrs []netip.Addr
}

// FindTransport finds the interface called ifname, or the only one with an address that matches ifname as a pattern, of
// several the one that has one of nodeIPs; without a name the one that has an address in one of cidrs, in the order of
// cidrs; without both the one that has the first of nodeIPs. Its addresses in nodeIPs are preferred (given cidrs, those
// in cidrs). The gateway is never chosen: a CIDR may well cover the podCIDRs.
func FindTransport(nodeIPs []netip.Addr, ifname string, cidrs []netip.Prefix, gateway string) (Transport, error) {
	devices, err := observeDevices(ifname, gateway)
	if err != nil {
		return Transport{}, fmt.Errorf("finding the transport interface: %w", err)
	}
	t, err := choose(devices, nodeIPs, ifname, cidrs)
	if err != nil {
		return Transport{}, fmt.Errorf("finding the transport interface: %w; this node has %s", err, list(devices))
	}
	return t, nil
}

// choose is the pure part of FindTransport.
func choose(devices []device, nodeIPs []netip.Addr, ifname string, cidrs []netip.Prefix) (Transport, error) {
	isNodeIP := func(a netip.Addr) bool { return slices.Contains(nodeIPs, a) }
	// An address on lo is reached through another interface, whose MTU counts: that interface must be configured by name.
	devices = slices.DeleteFunc(slices.Clone(devices), func(d device) bool { return d.Name == "lo" })
	switch {
	case IsPattern(ifname):
		d, err := fitting(devices, nodeIPs, ifname)
		return d.with(isNodeIP), err
	case ifname != "":
		i := slices.IndexFunc(devices, func(d device) bool { return d.Name == ifname })
		if i < 0 {
			return Transport{}, fmt.Errorf("transportInterface %s does not exist", ifname)
		}
		if len(devices[i].addrs) == 0 {
			return Transport{}, fmt.Errorf("transportInterface %s has no address", ifname)
		}
		return devices[i].with(isNodeIP), nil
	case len(cidrs) > 0:
		for _, c := range cidrs {
			i := slices.IndexFunc(devices, func(d device) bool { return slices.ContainsFunc(d.addrs, c.Contains) })
			if i >= 0 {
				return devices[i].with(func(a netip.Addr) bool {
					return slices.ContainsFunc(cidrs, func(c netip.Prefix) bool { return c.Contains(a) })
				}), nil
			}
		}
		return Transport{}, fmt.Errorf("no interface has an address in transportInterfaceCIDRs %s", join(cidrs))
	case len(nodeIPs) == 0:
		return Transport{}, errors.New("the Node has no address, and neither transportInterface nor transportInterfaceCIDRs is set")
	}
	for _, ip := range nodeIPs {
		if i := slices.IndexFunc(devices, func(d device) bool { return slices.Contains(d.addrs, ip) }); i >= 0 {
			return devices[i].with(isNodeIP), nil
		}
	}
	return Transport{}, fmt.Errorf("no interface (except lo) has the node's address %s: set transportInterface to the interface that leads to other nodes", join(nodeIPs))
}

// fitting returns the device with addresses that matches the pattern; of several the one that has one of nodeIPs.
func fitting(devices []device, nodeIPs []netip.Addr, pattern string) (device, error) {
	fit := slices.DeleteFunc(slices.Clone(devices), func(d device) bool {
		return len(d.addrs) == 0 || !Matches(pattern, d.Name)
	})
	if len(fit) == 0 {
		return device{}, fmt.Errorf("no interface with an address matches transportInterface %s", pattern)
	}
	own := slices.DeleteFunc(slices.Clone(fit), func(d device) bool {
		return !slices.ContainsFunc(d.addrs, func(a netip.Addr) bool { return slices.Contains(nodeIPs, a) })
	})
	switch {
	case len(fit) == 1:
		return fit[0], nil
	case len(own) == 1:
		return own[0], nil
	}
	return device{}, fmt.Errorf("transportInterface %s matches several interfaces with addresses, %s, and not exactly one of "+
		"them has an address of the Node: use a pattern that matches only the one that leads to other nodes", pattern, list(fit))
}

// with fills in one address per family, those that prefer accepts first, in the kernel's order.
func (d device) with(prefer func(netip.Addr) bool) Transport {
	t := d.Transport
	addrs := slices.Clone(d.addrs)
	slices.SortStableFunc(addrs, func(a, b netip.Addr) int {
		switch pa, pb := prefer(a), prefer(b); {
		case pa == pb:
			return 0
		case pa:
			return -1
		}
		return 1
	})
	for _, a := range addrs {
		if a.Is4() && !t.IPv4.IsValid() {
			t.IPv4 = a
		}
		if a.Is6() && !t.IPv6.IsValid() {
			t.IPv6 = a
		}
	}
	return t
}

// observeDevices reads, in index order, the node's interfaces that have addresses, with the usable ones, and the one
// called ifname, but none of Fairlead's.
func observeDevices(ifname, gateway string) ([]device, error) {
	links, addrs, err := observeNode(gateway)
	if err != nil {
		return nil, err
	}
	if ifname != "" && !IsPattern(ifname) {
		if l, err := netlink.LinkByName(ifname); err == nil {
			if _, err := links.of(l.Attrs().Index); err != nil {
				return nil, err
			}
		}
	}
	var devices []device
	for _, l := range links.read {
		if l == nil {
			continue
		}
		d := device{Transport: Transport{Name: l.Attrs().Name, Index: l.Attrs().Index, MTU: l.Attrs().MTU}}
		for _, a := range addrs {
			if p := netaddr.Prefix(a.IPNet); a.LinkIndex == d.Index && usable(a) {
				d.addrs = append(d.addrs, p.Addr())
				if !slices.Contains(d.Subnets, p.Masked()) {
					d.Subnets = append(d.Subnets, p.Masked())
				}
			}
		}
		devices = append(devices, d)
	}
	slices.SortFunc(devices, func(a, b device) int { return a.Index - b.Index })
	return devices, nil
}

// usable excludes addresses that no other node can reach, and IPv6 addresses that are temporary, deprecated or
// duplicate.
func usable(a netlink.Addr) bool {
	const unfit = unix.IFA_F_TEMPORARY | unix.IFA_F_DEPRECATED | unix.IFA_F_DADFAILED
	// For IPv4 the value of IFA_F_TEMPORARY means "secondary".
	if a.IP.To4() == nil && a.Flags&unfit != 0 {
		return false
	}
	return a.IP.IsGlobalUnicast()
}

func list(devices []device) string {
	var parts []string
	for _, d := range devices {
		if len(d.addrs) > 0 {
			parts = append(parts, d.Name+" "+join(d.addrs))
		}
	}
	if len(parts) == 0 {
		return "no addresses"
	}
	return strings.Join(parts, "; ")
}

func join[T fmt.Stringer](values []T) string {
	var s []string
	for _, v := range values {
		s = append(s, v.String())
	}
	return strings.Join(s, ", ")
}
