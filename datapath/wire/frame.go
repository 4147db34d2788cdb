package wire

import (
	"encoding/binary"
	"net/netip"

	"github.com/fairlead-cni/fairlead/api"
)

const (
	etherARP  = 0x0806
	etherIPv6 = 0x86dd
	etherVLAN = 0x8100

	etherLen = 14 // destination, source, type
	ipv6Len  = 40

	icmpv6      = 58
	neighbourNS = 135
	neighbourNA = 136
	hopLimit    = 255 // neighbour discovery is never routed
)

// probe queries addr and claims nothing: the sender's address is 0.0.0.0 (RFC 5227 section 1.1) or :: (RFC 4862 section
// 5.4.2).
func probe(from api.MAC, vlan uint16, addr netip.Addr) []byte {
	if addr.Is4() {
		return ethernet(broadcast(), from, vlan, etherARP, arp(from, netip.IPv4Unspecified(), addr))
	}
	a := addr.As16()
	group := netip.AddrFrom16([16]byte{0: 0xff, 1: 0x02, 11: 0x01, 12: 0xff, 13: a[13], 14: a[14], 15: a[15]})
	return ethernet(multicast(group), from, vlan, etherIPv6,
		neighbour(netip.IPv6Unspecified(), group, neighbourNS, 0, addr, nil))
}

// announcement announces that addr is at mac: an ARP request for the sender's own address (RFC 5227 section 1.1), or an
// unsolicited neighbour advertisement that overrides caches.
func announcement(mac api.MAC, addr netip.Addr) []byte {
	if addr.Is4() {
		return ethernet(broadcast(), mac, 0, etherARP, arp(mac, addr, addr))
	}
	const override = 0x20
	all := netip.IPv6LinkLocalAllNodes()
	return ethernet(multicast(all), mac, 0, etherIPv6,
		neighbour(addr, all, neighbourNA, override, addr, append([]byte{2, 1}, mac[:]...)))
}

func broadcast() api.MAC { return api.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff} }

// multicast returns the Ethernet address of an IPv6 group (RFC 2464 section 7).
func multicast(group netip.Addr) api.MAC {
	g := group.As16()
	return api.MAC{0x33, 0x33, g[12], g[13], g[14], g[15]}
}

// ethernet returns a frame, tagged unless vlan is 0.
func ethernet(to, from api.MAC, vlan, etherType uint16, payload []byte) []byte {
	f := append(append([]byte{}, to[:]...), from[:]...)
	if vlan != 0 {
		f = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(f, etherVLAN), vlan)
	}
	return append(binary.BigEndian.AppendUint16(f, etherType), payload...)
}

// arp returns a request (RFC 826) for target.
func arp(from api.MAC, sender, target netip.Addr) []byte {
	p := []byte{0, 1, 8, 0, 6, 4, 0, 1}
	p = append(append(p, from[:]...), sender.AsSlice()...)
	return append(append(p, 0, 0, 0, 0, 0, 0), target.AsSlice()...)
}

// neighbour returns an IPv6 packet with a neighbour solicitation or advertisement (RFC 4861 section 4).
func neighbour(src, dst netip.Addr, kind, flags byte, target netip.Addr, option []byte) []byte {
	msg := append([]byte{kind, 0, 0, 0, flags, 0, 0, 0}, target.AsSlice()...)
	msg = append(msg, option...)
	binary.BigEndian.PutUint16(msg[2:], checksum(src, dst, msg))
	p := []byte{0x60, 0, 0, 0, 0, byte(len(msg)), icmpv6, hopLimit}
	return append(append(append(p, src.AsSlice()...), dst.AsSlice()...), msg...)
}

// checksum returns the checksum of an ICMPv6 message (RFC 8200 section 8.1).
func checksum(src, dst netip.Addr, msg []byte) uint16 {
	lengthAndKind := []byte{0, 0, byte(len(msg) >> 8), byte(len(msg)), 0, 0, 0, icmpv6}
	return internetChecksum(src.AsSlice(), dst.AsSlice(), lengthAndKind, msg)
}

// internetChecksum returns the checksum of RFC 1071. Each part but the last has an even length.
func internetChecksum(parts ...[]byte) uint16 {
	sum := uint32(0)
	for _, part := range parts {
		for i := 0; i+1 < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
		if len(part)%2 == 1 {
			sum += uint32(part[len(part)-1]) << 8
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// claim returns the address that an untagged frame claims, and its owner. A probe claims nothing: two nodes may probe
// the same free address at once.
func claim(f []byte) (addr netip.Addr, owner api.MAC, ok bool) {
	if len(f) < etherLen {
		return addr, owner, false
	}
	p := f[etherLen:]
	switch binary.BigEndian.Uint16(f[12:]) {
	case etherARP:
		if len(p) < 28 || string(p[:6]) != "\x00\x01\x08\x00\x06\x04" {
			return addr, owner, false
		}
		addr = netip.AddrFrom4([4]byte(p[14:]))
		return addr, api.MAC(p[8:14]), !addr.IsUnspecified()
	case etherIPv6:
		if len(p) < ipv6Len+24 || p[6] != icmpv6 || p[7] != hopLimit || p[ipv6Len] != neighbourNA {
			return addr, owner, false
		}
		return netip.AddrFrom16([16]byte(p[ipv6Len+8:])), api.MAC(f[6:12]), true
	}
	return addr, owner, false
}
