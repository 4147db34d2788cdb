package denied

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// Packet is a denied packet.
type Packet struct {
	// Table is the table that dropped it, and Judged the number of the pod for which it was judged.
	Table    uint8
	Judged   uint32
	Src, Dst netip.Addr
	Protocol uint8 // IANA's number
	// SrcPort and DstPort are 0 if the packet has none: with other protocols, or in a fragment other than the first.
	SrcPort, DstPort uint16
}

// Numbers of IEEE 802 and IANA.
const (
	typeIPv4, typeIPv6, typeVLAN, typeVLANs = 0x0800, 0x86dd, 0x8100, 0x88a8

	tcp, udp, sctp                      = 6, 17, 132
	hopByHop, routing, options          = 0, 43, 60 // of IPv6: headers with a length in 8 bytes
	fragment, authentication, maxHeader = 44, 51, 8
)

// read reads the body of OFPT_PACKET_IN: buffer (4), length of the whole packet (2), reason (1), table (1), cookie (8),
// a match with the registers, two bytes of padding, and the packet's first bytes.
func read(b []byte) (p Packet, ok bool) {
	const match = 16
	if len(b) < match+4 {
		return p, false
	}
	p.Table = b[7]
	length := int(binary.BigEndian.Uint16(b[match+2:]))
	after := match + (length+7)&^7 + 2
	if length < 4 || after > len(b) {
		return p, false
	}
	if p.Judged, ok = judged(b[match+4 : match+length]); !ok {
		return p, false
	}
	return p, p.ethernet(b[after:])
}

// judged returns the register with the number of the pod, reg9. The switch lists registers in pairs.
func judged(fields []byte) (pod uint32, ok bool) {
	const pair, own = 0x8001<<8 | 4<<1, 0x0001<<8 | 9<<1
	for len(fields) >= 4 {
		size := int(fields[3])
		if size > len(fields)-4 {
			return 0, false
		}
		header, value := uint32(binary.BigEndian.Uint16(fields))<<8|uint32(fields[2]&^1), fields[4:4+size]
		switch {
		case header == pair && size >= 8:
			pod = binary.BigEndian.Uint32(value[4:])
		case header == own && size >= 4:
			pod = binary.BigEndian.Uint32(value)
		}
		fields = fields[4+size:]
	}
	return pod, len(fields) == 0
}

// ethernet reads a frame, which may have been forged.
func (p *Packet) ethernet(b []byte) bool {
	const header, tag = 14, 4
	if len(b) < header {
		return false
	}
	kind, b := binary.BigEndian.Uint16(b[12:]), b[header:]
	for kind == typeVLAN || kind == typeVLANs {
		if len(b) < tag {
			return false
		}
		kind, b = binary.BigEndian.Uint16(b[2:]), b[tag:]
	}
	switch kind {
	case typeIPv4:
		return p.ipv4(b)
	case typeIPv6:
		return p.ipv6(b)
	}
	return false
}

func (p *Packet) ipv4(b []byte) bool {
	const least = 20
	if len(b) < least || b[0]>>4 != 4 {
		return false
	}
	p.Src, p.Dst = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
	p.Protocol = b[9]
	header, offset := 4*int(b[0]&15), binary.BigEndian.Uint16(b[6:])&0x1fff
	if header >= least && header <= len(b) && offset == 0 {
		p.ports(b[header:])
	}
	return true
}

func (p *Packet) ipv6(b []byte) bool {
	const header = 40
	if len(b) < header || b[0]>>4 != 6 {
		return false
	}
	p.Src, p.Dst = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
	p.Protocol, b = b[6], b[header:]
	for range maxHeader {
		size := 8
		switch {
		case !slices.Contains([]uint8{hopByHop, routing, options, fragment, authentication}, p.Protocol):
			p.ports(b)
			return true
		case len(b) < size:
			return true
		case p.Protocol == fragment && binary.BigEndian.Uint16(b[2:])>>3 != 0:
			p.Protocol = b[0]
			return true
		case p.Protocol == authentication:
			size = 4 * (int(b[1]) + 2)
		case p.Protocol != fragment:
			size = 8 * (int(b[1]) + 1)
		}
		p.Protocol, b = b[0], b[min(size, len(b)):]
	}
	return true
}

func (p *Packet) ports(b []byte) {
	if (p.Protocol == tcp || p.Protocol == udp || p.Protocol == sctp) && len(b) >= 4 {
		p.SrcPort, p.DstPort = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	}
}
