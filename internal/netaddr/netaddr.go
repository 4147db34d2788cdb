// Package netaddr has what package netip lacks: families as numbers, and conversions to and from package net's types,
// which netlink, the CNI libraries and host-local use.
package netaddr

import (
	"net"
	"net/netip"
)

// Family is 4 or 6. An IPv4 address mapped into IPv6 is of family 6.
func Family(a netip.Addr) int {
	if a.Is4() {
		return 4
	}
	return 6
}

// IPNet is p in package net's form. It keeps p's host bits, as addresses need.
func IPNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// Prefix is the inverse of IPNet; it returns the zero Prefix for nil and for an invalid IPNet.
func Prefix(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	addr, ok := netip.AddrFromSlice(n.IP)
	if !ok {
		return netip.Prefix{}
	}
	if len(n.Mask) == net.IPv4len { // net.IP may hold IPv4 in 16 bytes
		addr = addr.Unmap()
	}
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(addr, bits)
}
