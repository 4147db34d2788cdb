// Package nx encodes and decodes groups, bundles and Open vSwitch's OpenFlow extensions. Messages and actions are
// appended to a buffer. Layouts are those of Open vSwitch's nicira-ext.h and of OpenFlow 1.5.1.
package nx

import (
	"bytes"
	"encoding/binary"
	"net/netip"
)

const (
	vendor = 0x00002320
	// Experimenter is the type of actions that are not OpenFlow's own.
	Experimenter = 0xffff
	subtypeCT    = 35
	subtypeNAT   = 36
	subtypeAgain = 14

	subtypeConjunction = 34
	subtypeLarger      = 49
	inPort             = 0xfff8

	ctCommit = 1
	// NoTable is the Table of a Conntrack without a further table lookup.
	NoTable = 255
)

// How a NAT changes addresses: not at all, as in the connection's entry, or as given.
const (
	NATNone  = 0
	NATApply = 1
	NATSrc   = 2
	NATDst   = 3
)

// Conntrack is the action ct.
type Conntrack struct {
	Commit bool
	// Zone is the zone, unless ZoneReg is set: then it is in the lower half of the register of that number.
	Zone    uint16
	ZoneReg uint8
	// Table is where the packet is looked up again, translated and with its connection state; or NoTable.
	Table uint8
	NAT   NAT
	// Mark are bits that a Commit sets in the connection's mark; the others stay.
	Mark uint8
}

// NAT is the action nat of a Conntrack.
type NAT struct {
	Kind uint8
	Addr netip.Addr
	// First and Last are the port range; 0 for both: ports are kept.
	First, Last uint16
}

// register is the header of the field NXM_NX_REGn.
func register(n uint8) uint32 {
	if n == 0 {
		return 0
	}
	return 0x0001_0004 | uint32(n)<<9
}

// Append appends the action with its header.
func (c Conntrack) Append(b []byte) []byte {
	start := len(b)
	b = header(b, subtypeCT)
	var flags uint16
	if c.Commit {
		flags = ctCommit
	}
	b = binary.BigEndian.AppendUint16(b, flags)
	b = binary.BigEndian.AppendUint32(b, register(c.ZoneReg))
	zone := c.Zone
	if c.ZoneReg != 0 {
		zone = 15 // bits 0 to 15
	}
	b = binary.BigEndian.AppendUint16(b, zone)
	b = append(b, c.Table, 0, 0, 0, 0, 0)
	return finish(appendMark(c.NAT.append(b), c.Mark), start)
}

// The field ct_mark with a mask, in an action set_field.
const maskedMark = 0x0001<<16 | 107<<9 | 1<<8 | 8

func appendMark(b []byte, bits uint8) []byte {
	if bits == 0 {
		return b
	}
	b = binary.BigEndian.AppendUint16(b, setField)
	b = binary.BigEndian.AppendUint16(b, 16)
	b = binary.BigEndian.AppendUint32(b, maskedMark)
	b = binary.BigEndian.AppendUint32(b, uint32(bits))
	return binary.BigEndian.AppendUint32(b, uint32(bits))
}

// Bits of a NAT's flags and of its ranges.
const (
	natSrc, natDst = 1, 2

	rangeIPv4, rangeIPv6         = 1 << 0, 1 << 2
	rangeFirst, rangeLast uint16 = 1 << 4, 1 << 5
)

// append writes ranges as Open vSwitch lists them: the end only if it differs from the start.
func (n NAT) append(b []byte) []byte {
	if n.Kind == NATNone {
		return b
	}
	start := len(b)
	b = append(header(b, subtypeNAT), 0, 0)
	var flags, has uint16
	switch n.Kind {
	case NATSrc:
		flags = natSrc
	case NATDst:
		flags = natDst
	}
	b = binary.BigEndian.AppendUint16(b, flags)
	b = binary.BigEndian.AppendUint16(b, 0) // what follows
	if n.Addr.Is4() {
		has, b = rangeIPv4, appendAddr(b, n.Addr)
	} else if n.Addr.IsValid() {
		has, b = rangeIPv6, appendAddr(b, n.Addr)
	}
	if n.First != 0 {
		has |= rangeFirst
		b = binary.BigEndian.AppendUint16(b, n.First)
	}
	if n.Last > n.First {
		has |= rangeLast
		b = binary.BigEndian.AppendUint16(b, n.Last)
	}
	binary.BigEndian.PutUint16(b[start+14:], has)
	return finish(b, start)
}

func appendAddr(b []byte, a netip.Addr) []byte {
	if a.Is4() {
		four := a.As4()
		return append(b, four[:]...)
	}
	sixteen := a.As16()
	return append(b, sixteen[:]...)
}

// header appends the head of an action; finish writes its length.
func header(b []byte, subtype uint16) []byte {
	b = binary.BigEndian.AppendUint16(b, Experimenter)
	b = binary.BigEndian.AppendUint32(append(b, 0, 0), vendor)
	return binary.BigEndian.AppendUint16(b, subtype)
}

// starts reports whether body is what follows type and length of an action of that subtype.
func starts(body []byte, subtype uint16) bool {
	return binary.BigEndian.Uint32(body) == vendor && binary.BigEndian.Uint16(body[4:]) == subtype
}

// finish pads the action beginning at start to 8 bytes and writes its length.
func finish(b []byte, start int) []byte {
	return pad(b, start, (len(b)-start+7)&^7)
}

// pad writes the length of what begins at start, and pads it to 8 bytes.
func pad(b []byte, start, length int) []byte {
	binary.BigEndian.PutUint16(b[start+2:], uint16(length))
	for (len(b)-start)%8 != 0 {
		b = append(b, 0)
	}
	return b
}

// ReadConntrack reads what follows type and length of an action; ok is false for any other action, and for a ct that
// Conntrack cannot fully express.
func ReadConntrack(body []byte) (c Conntrack, ok bool) {
	if len(body) < 20 || !starts(body, subtypeCT) {
		return c, false
	}
	c.Commit = binary.BigEndian.Uint16(body[6:]) == ctCommit
	c.Zone, c.Table = binary.BigEndian.Uint16(body[12:]), body[14]
	if reg := binary.BigEndian.Uint32(body[8:]); reg != 0 {
		c.ZoneReg, c.Zone = uint8(reg>>9)&0x7f, 0
	}
	switch {
	case len(body) == 36 && binary.BigEndian.Uint16(body[20:]) == setField:
		c.Mark = body[31]
	case len(body) > 20:
		c.NAT = readNAT(body[20:])
	}
	var again [128]byte
	return c, bytes.Equal(c.Append(again[:0])[4:], body)
}

// readNAT reads an action nat; anything misread shows when it is encoded again.
func readNAT(b []byte) (n NAT) {
	if len(b) < 16 {
		return n
	}
	n.Kind = map[uint16]uint8{0: NATApply, natSrc: NATSrc, natDst: NATDst}[binary.BigEndian.Uint16(b[12:])]
	has, rest := binary.BigEndian.Uint16(b[14:]), b[16:]
	take := func(bit uint16, size int) []byte {
		if has&bit == 0 || len(rest) < size {
			return nil
		}
		part := rest[:size]
		rest = rest[size:]
		return part
	}
	for _, family := range []struct {
		bit  uint16
		size int
	}{{rangeIPv4, 4}, {rangeIPv6, 16}} {
		if a, ok := netip.AddrFromSlice(take(family.bit, family.size)); ok {
			n.Addr = a
		}
	}
	if p := take(rangeFirst, 2); p != nil {
		n.First, n.Last = binary.BigEndian.Uint16(p), binary.BigEndian.Uint16(p)
	}
	if p := take(rangeLast, 2); p != nil {
		n.Last = binary.BigEndian.Uint16(p)
	}
	return n
}

// Conjunction appends the action conjunction, with a number from 1.
func Conjunction(b []byte, id uint32, number, of uint8) []byte {
	start := len(b)
	return finish(binary.BigEndian.AppendUint32(append(header(b, subtypeConjunction), number-1, of), id), start)
}

// ReadConjunction reads what follows type and length of an action.
func ReadConjunction(body []byte) (id uint32, number, of uint8, ok bool) {
	if len(body) != 12 || !starts(body, subtypeConjunction) {
		return 0, 0, 0, false
	}
	return binary.BigEndian.Uint32(body[8:]), body[6] + 1, body[7], true
}

// Resubmit appends the action resubmit with a table, and the port that the packet came from.
func Resubmit(b []byte, table uint8) []byte {
	start := len(b)
	return finish(append(binary.BigEndian.AppendUint16(header(b, subtypeAgain), inPort), table), start)
}

// ReadResubmit reads what follows type and length of an action.
func ReadResubmit(body []byte) (table uint8, ok bool) {
	if len(body) != 12 {
		return 0, false
	}
	var again [16]byte
	return body[8], bytes.Equal(Resubmit(again[:0], body[8])[4:], body)
}

// LargerBit is the bit of register 1 that CheckLarger writes.
const LargerBit = 14

// CheckLarger appends the action check_pkt_larger: a bit of register 1 says whether a frame has more bytes.
func CheckLarger(b []byte, size uint16) []byte {
	start := len(b)
	b = binary.BigEndian.AppendUint16(header(b, subtypeLarger), size)
	b = binary.BigEndian.AppendUint16(b, LargerBit)
	return finish(binary.BigEndian.AppendUint32(b, register(1)), start)
}

// ReadCheckLarger reads what follows type and length of an action.
func ReadCheckLarger(body []byte) (size uint16, ok bool) {
	if len(body) != 20 {
		return 0, false
	}
	var again [24]byte
	size = binary.BigEndian.Uint16(body[6:])
	return size, bytes.Equal(CheckLarger(again[:0], size)[4:], body)
}

// Cut returns the first n bytes of b and what follows. It is not ok if n is below least or b is shorter.
func Cut(b []byte, n, least int) (head, rest []byte, ok bool) {
	if n < least || n > len(b) {
		return nil, nil, false
	}
	return b[:n:n], b[n:], true
}

// U16 reads two bytes at offset i, as a length; -1 if b is too short for it.
func U16(b []byte, i int) int {
	if len(b) < i+2 {
		return -1
	}
	return int(binary.BigEndian.Uint16(b[i:]))
}
