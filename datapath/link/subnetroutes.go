package link

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/datapath/internal/kernel"
	"github.com/fairlead-cni/fairlead/internal/netaddr"
)

// ensureSubnetRoutes sets, on the routes that the kernel created for the addresses, the MTU of the pods there and the
// source that g wants. Open vSwitch silently drops what is too big for a pod's interface; with the route's MTU the
// kernel fragments it, or notifies the sender.
//
// When the source, an address of another interface, is deleted, the kernel deletes an IPv4 route with it: the route is
// restored. And it leaves a route with such a source behind when the gateway's own address is deleted.
func ensureSubnetRoutes(g GatewayLink, link netlink.Link) (changes []string, err error) {
	have, stale, err := subnetRoutes(g, link.Attrs().Index)
	if err != nil {
		return nil, err
	}
	for _, r := range stale {
		dst := netaddr.Prefix(r.Dst)
		if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			return changes, fmt.Errorf("removing the route to %s: %w", dst, err)
		}
		changes = append(changes, fmt.Sprintf("removed the route to %s", dst))
	}
	for _, a := range g.Addrs {
		dst, source := a.Masked(), g.source(a.Addr())
		r, there := have[dst]
		if a.IsSingleIP() || there && r.MTU == g.SubnetMTU && r.Src.Equal(source.AsSlice()) {
			continue
		}
		if !there {
			r = netlink.Route{LinkIndex: link.Attrs().Index, Dst: netaddr.IPNet(dst), Protocol: unix.RTPROT_KERNEL,
				Table: unix.RT_TABLE_MAIN}
			if r.Scope = netlink.SCOPE_LINK; dst.Addr().Is6() {
				r.Scope, r.Priority = netlink.SCOPE_UNIVERSE, kernelMetric6
			}
		}
		r.MTU, r.Src, r.Flags = g.SubnetMTU, source.AsSlice(), 0 // "linkdown" and the like can be read, but not set
		if err := netlink.RouteReplace(&r); err != nil {
			return changes, fmt.Errorf("setting MTU and source of the route to %s: %w", dst, err)
		}
		changes = append(changes, fmt.Sprintf("MTU and source of the route to %s", dst))
	}
	return changes, nil
}

// kernelMetric6 is the metric of the routes that the kernel creates for addresses (IP6_RT_PRIO_ADDRCONF in
// linux/ipv6_route.h).
const kernelMetric6 = 256

// subnetRoutes returns the kernel's routes to the subnets of g's addresses, and those left over from former addresses.
func subnetRoutes(g GatewayLink, index int) (have map[netip.Prefix]netlink.Route, stale []netlink.Route, err error) {
	routes, err := kernel.Dump(func() ([]netlink.Route, error) {
		filter := &netlink.Route{LinkIndex: index, Table: unix.RT_TABLE_MAIN, Protocol: unix.RTPROT_KERNEL}
		return netlink.RouteListFiltered(netlink.FAMILY_ALL, filter,
			netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
	})
	if err != nil {
		return nil, nil, fmt.Errorf("listing routes: %w", err)
	}
	have = map[netip.Prefix]netlink.Route{}
	for _, r := range routes {
		dst := netaddr.Prefix(r.Dst)
		if slices.ContainsFunc(g.Addrs, func(p netip.Prefix) bool { return p.Masked() == dst }) {
			have[dst] = r
		} else if r.Src != nil {
			stale = append(stale, r)
		}
	}
	return have, stale, nil
}

// source returns the source of the node's own packets to the subnet of an address; none leaves it to the kernel.
func (g GatewayLink) source(of netip.Addr) netip.Addr {
	for _, a := range g.Sources {
		if a.Is4() == of.Is4() {
			return a
		}
	}
	if of.Is4() {
		return of // as the kernel creates them
	}
	return netip.Addr{}
}
