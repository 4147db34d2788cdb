package nx

import (
	"encoding/binary"
	"net/netip"

	"github.com/fairlead-cni/fairlead/openflow/internal/ofconn"
)

const (
	msgExperimenter = 4
	subtypeFlush    = 32

	flushOriginal, flushReply, flushZone = 0, 1, 2 // parts of the message

	tupleSrc, tupleDst, tupleSrcPort, tupleDstPort = 0, 1, 2, 3
)

// Flush returns the message that deletes from conntrack the connections of a protocol and zone that clients have opened
// to one address and that were translated to another (NXT_CT_FLUSH, since Open vSwitch 3.1).
func Flush(xid uint32, zone uint16, protocol uint8, to, translated netip.AddrPort) []byte {
	b := binary.BigEndian.AppendUint32(nil, vendor)
	b = binary.BigEndian.AppendUint32(b, subtypeFlush)
	b = append(b, protocol, 0, 0, 0, 0, 0, 0, 0)
	b = append(b, property(flushOriginal, tuple(tupleDst, tupleDstPort, to))...)
	b = append(b, property(flushReply, tuple(tupleSrc, tupleSrcPort, translated))...)
	b = append(b, property(flushZone, binary.BigEndian.AppendUint16(nil, zone))...)
	return ofconn.Encode(msgExperimenter, xid, b)
}

// FlushOne returns the message that deletes one connection of a protocol and zone from conntrack, by the addresses of
// its first packet.
func FlushOne(xid uint32, zone uint16, protocol uint8, from, to netip.AddrPort) []byte {
	b := binary.BigEndian.AppendUint32(nil, vendor)
	b = binary.BigEndian.AppendUint32(b, subtypeFlush)
	b = append(b, protocol, 0, 0, 0, 0, 0, 0, 0)
	ends := append(tuple(tupleSrc, tupleSrcPort, from), tuple(tupleDst, tupleDstPort, to)[4:]...)
	b = append(b, property(flushOriginal, ends)...)
	b = append(b, property(flushZone, binary.BigEndian.AppendUint16(nil, zone))...)
	return ofconn.Encode(msgExperimenter, xid, b)
}

// tuple encodes nested properties, the first aligned; IPv4 addresses are IPv4-mapped there.
func tuple(addr, port uint16, a netip.AddrPort) []byte {
	to := a.Addr().As16()
	return append(append(make([]byte, 4), property(addr, to[:])...), property(port, binary.BigEndian.AppendUint16(nil,
		a.Port()))...)
}

// property is padded to 8 bytes; its length does not include the padding.
func property(kind uint16, value []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, kind)
	b = append(binary.BigEndian.AppendUint16(b, uint16(4+len(value))), value...)
	for len(b)%8 != 0 {
		b = append(b, 0)
	}
	return b
}
