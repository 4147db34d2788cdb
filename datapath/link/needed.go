package link

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/datapath/internal/kernel"
	"github.com/fairlead-cni/fairlead/internal/netaddr"
)

// Needed is an address that the node itself needs: one of its own, or the next hop of a route. A pod route that covers
// it would cut the node off from something, in the worst case from everything.
type Needed struct {
	Addr netip.Addr
	// What describes it: "the address of eth1", "the next hop to default on eth1".
	What string
	// Internal says that it is on a device that may be an internal port of Open vSwitch, such as a gateway that the
	// configuration has renamed.
	Internal bool
}

// FindNeeded lists what the node needs, in the kernel's order, except what is on or behind the gateway and pod
// interfaces.
func FindNeeded(gateway string) ([]Needed, error) {
	links, addrs, err := observeNode(gateway)
	if err != nil {
		return nil, err
	}
	var needed []Needed
	for _, a := range addrs {
		l := links.read[a.LinkIndex]
		if addr := netaddr.Prefix(a.IPNet).Addr(); addr.IsGlobalUnicast() {
			needed = append(needed, Needed{addr, "the address of " + l.Attrs().Name, internalPort(l)})
		}
	}
	hops, err := nextHops(links)
	return append(needed, hops...), err
}

func internalPort(l netlink.Link) bool { return l.Type() == "openvswitch" || l.Type() == "tuntap" }

// nextHops returns the next hops of all routing tables.
func nextHops(links *nodeLinks) ([]Needed, error) {
	routes, err := kernel.Dump(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_UNSPEC},
			netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("listing routes: %w", err)
	}
	var needed []Needed
	add := func(index int, gw net.IP, dst *net.IPNet) error {
		hop, ok := netip.AddrFromSlice(gw)
		if hop = hop.Unmap(); !ok || !hop.IsGlobalUnicast() {
			return nil
		}
		l, err := links.of(index)
		if l == nil {
			return err
		}
		to := "default"
		if dst != nil {
			to = dst.String()
		}
		needed = append(needed, Needed{Addr: hop, What: fmt.Sprintf("the next hop to %s on %s", to, l.Attrs().Name)})
		return nil
	}
	var errs []error
	for _, r := range routes {
		errs = append(errs, add(r.LinkIndex, r.Gw, r.Dst))
		for _, path := range r.MultiPath {
			errs = append(errs, add(path.LinkIndex, path.Gw, r.Dst))
		}
	}
	return needed, errors.Join(errs...)
}
