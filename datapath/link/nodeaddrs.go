package link

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/fairlead-cni/fairlead/datapath/internal/kernel"
	"github.com/fairlead-cni/fairlead/internal/netaddr"
)

// NodeAddrs lists the node's own addresses, sorted: all unicast ones except those of the gateway, of pod interfaces, of
// 127.0.0.0/8 and ::1, and IPv6 link-local ones.
func NodeAddrs(gateway string) ([]netip.Addr, error) {
	_, have, err := observeNode(gateway)
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

// nodeLinks are the node's own interfaces, without the gateway and pod interfaces. Each is read when it is needed:
// listing all interfaces takes longer the more pods there are.
type nodeLinks struct {
	gateway string
	read    map[int]netlink.Link // by index; nil: none of the node's own has it
}

// of returns the interface with an index; nil if none of the node's own has it.
func (n *nodeLinks) of(index int) (netlink.Link, error) {
	l, known := n.read[index]
	if known {
		return l, nil
	}
	l, err := netlink.LinkByIndex(index)
	switch {
	case errors.As(err, &netlink.LinkNotFoundError{}):
		l = nil
	case err != nil:
		return nil, fmt.Errorf("reading interface %d: %w", index, err)
	case ours(l) || l.Attrs().Name == n.gateway:
		l = nil
	}
	n.read[index] = l
	return l, nil
}

// observeNode reads the addresses of the node's own interfaces, in the kernel's order, and these interfaces.
func observeNode(gateway string) (links *nodeLinks, addrs []netlink.Addr, err error) {
	links = &nodeLinks{gateway, map[int]netlink.Link{}}
	all, err := kernel.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, nil, fmt.Errorf("listing addresses: %w", err)
	}
	for _, a := range all {
		l, err := links.of(a.LinkIndex)
		if err != nil {
			return nil, nil, err
		}
		if l != nil {
			addrs = append(addrs, a)
		}
	}
	return links, addrs, nil
}
