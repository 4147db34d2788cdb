package kernel

import (
	"net"
	"net/netip"
)

// IPNet is p in netlink's form. It keeps p's host bits, as addresses need.
func IPNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// Prefix is the reverse of IPNet; the zero Prefix stands for nil.
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
