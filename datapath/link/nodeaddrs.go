package link

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/fairlead-cni/fairlead/datapath/internal/kernel"
	"github.com/fairlead-cni/fairlead/internal/netaddr"
)

// NodeAddrs lists the node's own addresses, sorted: all unicast ones but those
// of the gateway, of pods' interfaces, of 127.0.0.0/8 and ::1, and IPv6
// link-local ones.
func NodeAddrs(gateway string) ([]netip.Addr, error) {
	_, have, err := nodeLinks(gateway)
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	for _, a := range have {
		addr := netaddr.Prefix(a.IPNet).Addr()
		// Node-local DNS caches have an IPv4 link-local address.
		if addr.IsGlobalUnicast() || addr.Is4() && addr.IsLinkLocalUnicast() {
			out = append(out, addr)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out), nil
}

// nodeLinks are the node's own interfaces, by index, and their addresses, in the kernel's order: without the gateway
// and pods' interfaces.
func nodeLinks(gateway string) (byIndex map[int]netlink.Link, addrs []netlink.Addr, err error) {
	links, err := kernel.Dump(netlink.LinkList)
	if err != nil {
		return nil, nil, fmt.Errorf("listing interfaces: %w", err)
	}
	byIndex = map[int]netlink.Link{}
	for _, l := range links {
		if !ours(l) && l.Attrs().Name != gateway {
			byIndex[l.Attrs().Index] = l
		}
	}
	addrs, err = kernel.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, nil, fmt.Errorf("listing addresses: %w", err)
	}
	return byIndex, slices.DeleteFunc(addrs, func(a netlink.Addr) bool { return byIndex[a.LinkIndex] == nil }), nil
}
