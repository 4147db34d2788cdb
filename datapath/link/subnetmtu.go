package link

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/datapath/internal/kernel"
	"github.com/fairlead-cni/fairlead/internal/netaddr"
)

// ensureSubnetMTU gives the routes that the kernel has made for the addresses the
// MTU of the pods there. Open vSwitch drops what is too big for a pod's interface
// without a word; with the route's MTU the kernel splits it, or tells the sender.
func ensureSubnetMTU(g GatewayLink, link netlink.Link) (changes []string, err error) {
	routes, err := kernel.Dump(func() ([]netlink.Route, error) {
		filter := &netlink.Route{LinkIndex: link.Attrs().Index, Table: unix.RT_TABLE_MAIN, Protocol: unix.RTPROT_KERNEL}
		return netlink.RouteListFiltered(netlink.FAMILY_ALL, filter,
			netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
	})
	if err != nil {
		return nil, fmt.Errorf("listing routes: %w", err)
	}
	for _, r := range routes {
		dst := netaddr.Prefix(r.Dst)
		subnet := slices.ContainsFunc(g.Addrs, func(p netip.Prefix) bool { return p.Masked() == dst })
		if !subnet || r.MTU == g.SubnetMTU {
			continue
		}
		r.MTU, r.Flags = g.SubnetMTU, 0 // "linkdown" and the like are read, but not taken
		if err := netlink.RouteReplace(&r); err != nil {
			return changes, fmt.Errorf("setting MTU %d of the route to %s: %w", g.SubnetMTU, dst, err)
		}
		changes = append(changes, fmt.Sprintf("MTU %d of the route to %s", g.SubnetMTU, dst))
	}
	return changes, nil
}
