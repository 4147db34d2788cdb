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
	links, err := kernel.Dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("listing interfaces: %w", err)
	}
	skip := map[int]bool{}
	for _, l := range links {
		skip[l.Attrs().Index] = ours(l) || l.Attrs().Name == gateway
	}
	have, err := kernel.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("listing addresses: %w", err)
	}
	var out []netip.Addr
	for _, a := range have {
		addr := netaddr.Prefix(a.IPNet).Addr()
		// Node-local DNS caches have an IPv4 link-local address.
		if !skip[a.LinkIndex] && (addr.IsGlobalUnicast() || addr.Is4() && addr.IsLinkLocalUnicast()) {
			out = append(out, addr)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out), nil
}
