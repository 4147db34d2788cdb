package link

import (
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// ipNet keeps the host bits of p, as addresses need.
func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// prefixOf is the reverse of ipNet; the zero Prefix stands for nil.
func prefixOf(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	addr, ok := netip.AddrFromSlice(n.IP)
	if !ok {
		return netip.Prefix{}
	}
	if len(n.Mask) == net.IPv4len {
		addr = addr.Unmap()
	}
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(addr, bits)
}

// describe is r as ip-route(8) writes it.
func describe(r netlink.Route) string {
	if len(r.Gw) == 0 {
		return prefixOf(r.Dst).String()
	}
	return prefixOf(r.Dst).String() + " via " + r.Gw.String()
}
