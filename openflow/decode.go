package openflow

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/fairlead-cni/fairlead/api"
)

// This file reads what the switch says: frames, errors, and the list of flows.
// It works on the bytes, without libOpenflow: that loses arp_sha on reading
// (v0.15.0), walks past the end of short messages, and cannot hand over the
// match of a flow that it does not understand, which is needed to delete it.
// Numbers are from OpenFlow 1.5.1, section 7, and OVS's nicira-ext.h.

// Types of messages.
const (
	msgHello          = 0
	msgError          = 1
	msgEchoRequest    = 2
	msgEchoReply      = 3
	msgMultipartReply = 19
	msgBarrierRequest = 20
	msgBarrierReply   = 21
	msgBundleControl  = 33
)

const (
	errExperimenter   = 0xffff // error type
	multipartFlowDesc = 1
	multipartMore     = 1 // flag: another part follows
	bundleCommitReply = 5
	instrGoto         = 1
	instrApply        = 4
	actionOutput      = 0
	actionPushVLAN    = 17
	actionPopVLAN     = 18
	actionDecTTL      = 24
	actionSetField    = 25
	actionCopyField   = 28
	portIn            = 0xfffffff8 // OFPP_IN_PORT
	protoICMPv6       = 58
	vlanPresent       = 0x1000
)

// Match fields, as class<<8 | field.
const (
	oxmInPort     = 0x8000_00
	oxmEthDst     = 0x8000_03
	oxmEthSrc     = 0x8000_04
	oxmEthType    = 0x8000_05
	oxmVLAN       = 0x8000_06
	oxmIPProto    = 0x8000_0a
	oxmIPv4Src    = 0x8000_0b
	oxmIPv4Dst    = 0x8000_0c
	oxmARPOp      = 0x8000_15
	oxmARPSpa     = 0x8000_16
	oxmARPTpa     = 0x8000_17
	oxmARPSha     = 0x8000_18
	oxmARPTha     = 0x8000_19
	oxmIPv6Src    = 0x8000_1a
	oxmIPv6Dst    = 0x8000_1b
	oxmICMPv6Type = 0x8000_1d
	oxmICMPv6Code = 0x8000_1e
	oxmNDTarget   = 0x8000_1f
	oxmNDSll      = 0x8000_20
	oxmNDTll      = 0x8000_21
	oxmPktReg0    = 0x8001_00 // reg0 in the upper half, reg1 in the lower
	nxmReg0       = 0x0001_00
	nxmReg1       = 0x0001_01
	nxmIPFrag     = 0x0001_1a
	nxmTunSrc     = 0x0001_1f
	nxmTunDst     = 0x0001_20
	nxmTunIPv6Src = 0x0001_6d
	nxmTunIPv6Dst = 0x0001_6e
)

var errShort = errors.New("message is truncated")

// message is one message from the switch.
type message struct {
	version uint8
	kind    uint8
	xid     uint32
	body    []byte // what follows the header
}

// parseHeader reads the 8 bytes that every message starts with and returns the
// length of the body that follows.
func parseHeader(h [headerLen]byte) (m message, bodyLen int, err error) {
	m = message{version: h[0], kind: h[1], xid: binary.BigEndian.Uint32(h[4:])}
	length := int(binary.BigEndian.Uint16(h[2:]))
	if length < headerLen {
		return m, 0, fmt.Errorf("a message of type %d claims a length of %d bytes", m.kind, length)
	}
	return m, length - headerLen, nil
}

// switchError returns the error that an error message carries.
func (m message) switchError() error {
	if len(m.body) < 4 {
		return errShort
	}
	kind, code := binary.BigEndian.Uint16(m.body), binary.BigEndian.Uint16(m.body[2:])
	vendor := uint32(0)
	if kind == errExperimenter {
		if len(m.body) < 8 {
			return errShort
		}
		vendor = binary.BigEndian.Uint32(m.body[4:])
	}
	return errors.New(errorName(kind, code, vendor))
}

// isCommitReply reports whether m confirms the commit of a bundle.
func (m message) isCommitReply() bool {
	return m.kind == msgBundleControl && len(m.body) >= 6 &&
		binary.BigEndian.Uint16(m.body[4:]) == bundleCommitReply
}

// listed is one flow as the switch lists it.
type listed struct {
	flow   Flow
	cookie uint64
	// limited: the flow has a timeout, flags or an importance. Ours never do.
	limited bool
	// unsupported: flow.Match is not all of the match, which rawMatch is.
	unsupported bool
	rawMatch    []byte
}

// flows reads one part of the list of flows and whether another part follows.
func (m message) flows() (out []listed, more bool, err error) {
	if len(m.body) < 8 || binary.BigEndian.Uint16(m.body) != multipartFlowDesc {
		return nil, false, fmt.Errorf("not a flow stats reply: %w", errShort)
	}
	more = binary.BigEndian.Uint16(m.body[2:])&multipartMore != 0
	for rest := m.body[8:]; len(rest) > 0; {
		desc, tail, ok := cut(rest, u16(rest, 0), 24)
		if !ok {
			return nil, false, fmt.Errorf("decoding flow stats: %w", errShort)
		}
		l, err := readFlow(desc)
		if err != nil {
			return nil, false, fmt.Errorf("decoding flow stats: %w", err)
		}
		out, rest = append(out, l), tail
	}
	return out, more, nil
}

// readFlow reads a struct ofp_flow_desc: 24 bytes, match, statistics,
// instructions. Match and statistics are padded to 8 bytes.
func readFlow(b []byte) (listed, error) {
	l := listed{cookie: binary.BigEndian.Uint64(b[16:])}
	l.flow.Table, l.flow.Priority = b[4], binary.BigEndian.Uint16(b[6:])
	l.flow.Kind = kindOf(l.cookie)
	l.limited = binary.BigEndian.Uint64(b[8:]) != 0
	length := u16(b[24:], 2)
	match, rest, ok := cut(b[24:], roundUp8(length), 8)
	if !ok || length < 4 {
		return l, errShort
	}
	l.rawMatch = match
	l.flow.Match, l.unsupported = readMatch(match[4:length])
	_, instructions, ok := cut(rest, roundUp8(u16(rest, 2)), 8)
	if !ok {
		return l, errShort
	}
	l.flow.Actions = readInstructions(instructions)
	return l, nil
}

// readMatch reads the fields of a match. unsupported tells that there is one among
// them that Match cannot express.
func readMatch(b []byte) (m Match, unsupported bool) {
	proto, code := uint8(0), false
	for len(b) > 0 {
		f, rest, ok := cutField(b)
		if !ok {
			return m, true
		}
		b = rest
		switch {
		case f.id == oxmIPProto && f.is(1):
			proto = f.value[0]
		case f.id == oxmICMPv6Code && f.is(1) && f.value[0] == 0:
			code = true
		case !f.setMatch(&m):
			unsupported = true
		}
	}
	// The ICMPv6 type implies the protocol, and is the only thing that does. A
	// field of neighbour discovery implies the code in the same way.
	unsupported = unsupported || code != m.hasND()
	return m, unsupported || (proto == protoICMPv6) != (m.ICMPv6 != 0) || (proto != 0 && proto != protoICMPv6)
}

// field is one OXM or NXM field.
type field struct {
	id          uint32 // class<<8 | field
	value, mask []byte // no mask: match all bits
}

// is reports whether the field is n bytes without a mask.
func (f field) is(n int) bool { return len(f.value) == n && f.mask == nil }

func cutField(b []byte) (f field, rest []byte, ok bool) {
	if len(b) < 4 {
		return f, nil, false
	}
	f.id = uint32(binary.BigEndian.Uint16(b))<<8 | uint32(b[2]>>1)
	f.value, rest, ok = cut(b[4:], int(b[3]), 0)
	if masked := b[2]&1 != 0; masked && ok {
		half := len(f.value) / 2
		f.value, f.mask = f.value[:half], f.value[half:]
		ok = len(f.value) == len(f.mask)
	}
	return f, rest, ok
}

// setMatch sets the field in m and reports whether m has such a field.
func (f field) setMatch(m *Match) bool {
	switch {
	case f.id == oxmInPort && f.is(4):
		m.InPort = binary.BigEndian.Uint32(f.value)
	case f.id == oxmPktReg0 && len(f.value) == 8:
		return f.setRegisters(m)
	case f.id == oxmEthType && f.is(2):
		m.EtherType = EtherType(binary.BigEndian.Uint16(f.value))
	case f.id == oxmARPOp && f.is(2):
		m.ARPOp = binary.BigEndian.Uint16(f.value)
	case f.id == oxmICMPv6Type && f.is(1):
		m.ICMPv6 = f.value[0]
	case f.id == nxmIPFrag && len(f.value) == 1 && f.mask != nil:
		m.Fragment = true
		return f.value[0] == fragAny && f.mask[0] == fragAny
	case f.id == oxmEthSrc && f.is(6):
		m.EthSrc = api.MAC(f.value)
	case f.id == oxmEthDst && f.is(6):
		m.EthDst = api.MAC(f.value)
	case f.id == oxmARPSha && f.is(6):
		m.ARPSha = api.MAC(f.value)
	case f.id == oxmNDSll && f.is(6):
		m.NDSll = LinkAddr{Set: true, MAC: api.MAC(f.value)}
	case f.id == oxmNDTll && f.is(6):
		m.NDTll = LinkAddr{Set: true, MAC: api.MAC(f.value)}
	case f.id == oxmVLAN && len(f.value) == 2 && f.mask != nil:
		m.Tagged = true
		return binary.BigEndian.Uint16(f.mask) == vlanPresent && binary.BigEndian.Uint16(f.value) == vlanPresent
	case f.id == oxmVLAN && f.is(2):
		tci := binary.BigEndian.Uint16(f.value)
		m.VLAN = segmentOf(tci)
		return tci == 0 || tci > vlanPresent && tci <= vlanPresent|api.MaxVLAN // no priority tag (ID 0)
	default:
		return f.setAddr(m)
	}
	return true
}

// setRegisters is setMatch for reg0 and reg1, each of which is matched whole or
// not at all.
func (f field) setRegisters(m *Match) bool {
	source, segment := binary.BigEndian.Uint32(f.value), binary.BigEndian.Uint32(f.value[4:])
	mask := uint64(1<<64 - 1)
	if f.mask != nil {
		mask = binary.BigEndian.Uint64(f.mask)
	}
	m.Source, m.Segment = Source(source), Segment(segment)
	var ours uint64 // the mask that such a match of ours has
	if source != 0 {
		ours = 0xffffffff << 32
	}
	if segment != 0 {
		ours |= 0xffffffff
	}
	return mask == ours && segment <= vlanPresent|api.MaxVLAN
}

// setAddr is setMatch for fields that are IP addresses.
func (f field) setAddr(m *Match) bool {
	p, ok := f.prefix()
	if !ok {
		return false
	}
	switch f.id {
	case oxmIPv4Src, oxmIPv6Src, oxmARPSpa:
		m.Src = p
	case oxmIPv4Dst, oxmIPv6Dst, oxmARPTpa:
		m.Dst = p
	case nxmTunSrc, nxmTunIPv6Src:
		m.TunSrc = p.Addr()
		return p.IsSingleIP()
	case oxmNDTarget:
		m.NDTarget = p.Addr()
		return p.IsSingleIP()
	default:
		return false
	}
	return true
}

// prefix returns an address field with its mask.
func (f field) prefix() (netip.Prefix, bool) {
	addr, ok := netip.AddrFromSlice(f.value)
	if !ok {
		return netip.Prefix{}, false
	}
	bits := addr.BitLen()
	if f.mask != nil {
		if bits, ok = prefixLen(f.mask); !ok {
			return netip.Prefix{}, false
		}
	}
	return netip.PrefixFrom(addr, bits), true
}

// readInstructions returns the actions of a flow. What no flow of ours has
// becomes an unknownAction, so that the result equals no actions of ours.
func readInstructions(b []byte) []Action {
	var out []Action
	for len(b) > 0 {
		instr, rest, ok := cut(b, u16(b, 2), 8)
		if !ok {
			return append(out, unknownAction("?"))
		}
		b = rest
		switch kind := binary.BigEndian.Uint16(instr); kind {
		case instrGoto:
			out = append(out, Goto(instr[4]))
		case instrApply:
			out = append(out, readActions(instr[8:])...)
		default:
			out = append(out, unknownAction(fmt.Sprintf("instruction_%d(%x)", kind, instr[4:])))
		}
	}
	return out
}

func readActions(b []byte) []Action {
	var out []Action
	for len(b) > 0 {
		action, rest, ok := cut(b, u16(b, 2), 4)
		if !ok {
			return append(out, unknownAction("?"))
		}
		b = rest
		out = append(out, readAction(binary.BigEndian.Uint16(action), action[4:]))
	}
	return out
}

func readAction(kind uint16, body []byte) Action {
	switch {
	case kind == actionOutput && len(body) == 12:
		if port := binary.BigEndian.Uint32(body); port != portIn {
			return Output(port)
		}
		return OutputInPort{}
	case kind == actionPopVLAN:
		return PopVLAN{}
	case kind == actionPushVLAN && u16(body, 0) == tpid:
		return PushVLAN{}
	case kind == actionCopyField:
		for c := EthSrcToDst; c <= ARPSpaToTpa; c++ {
			if c.is(body) {
				return c
			}
		}
	case kind == actionDecTTL:
		return DecTTL{}
	case kind == actionSetField:
		if f, _, ok := cutField(body); ok {
			if a := f.setAction(); a != nil {
				return a
			}
		}
	}
	return unknownAction(fmt.Sprintf("action_%d(%x)", kind, body))
}

// is reports whether the body of a copy_field action is that of a: the width and
// two offsets in bits, two bytes of padding, the headers of two fields.
func (a MoveField) is(body []byte) bool {
	_, from, to, bits := a.fields()
	if len(body) < 16 || binary.BigEndian.Uint16(body) != bits || binary.BigEndian.Uint32(body[2:]) != 0 {
		return false
	}
	fieldAt := func(i int) uint32 { // less the bit of a mask and the length
		return uint32(binary.BigEndian.Uint16(body[i:]))<<8 | uint32(body[i+2]>>1)
	}
	return fieldAt(8) == from && fieldAt(12) == to
}

// setAction returns the action that sets this field, nil for a field that no
// flow of ours sets.
func (f field) setAction() Action {
	switch {
	case f.id == nxmReg0 && f.is(4):
		return SetSource(binary.BigEndian.Uint32(f.value))
	case f.id == nxmReg1 && f.is(4):
		if s := binary.BigEndian.Uint32(f.value); s <= vlanPresent|api.MaxVLAN {
			return SetSegment(s)
		}
	case f.id == oxmVLAN && f.is(2):
		if tci := binary.BigEndian.Uint16(f.value); tci&vlanPresent != 0 {
			return SetVLAN(tci &^ vlanPresent)
		}
	case f.id == oxmARPOp && f.is(2):
		return SetARPOp(binary.BigEndian.Uint16(f.value))
	case f.id == oxmARPSha && f.is(6):
		return SetARPSha(f.value)
	case f.id == oxmARPSpa && f.is(4):
		return SetARPSpa{netip.AddrFrom4([4]byte(f.value))}
	case f.id == oxmEthSrc && f.is(6):
		return SetEthSrc(f.value)
	case f.id == oxmEthDst && f.is(6):
		return SetEthDst(f.value)
	case f.id == nxmTunDst && f.is(4), f.id == nxmTunIPv6Dst && f.is(16):
		addr, _ := netip.AddrFromSlice(f.value)
		return SetTunDst{addr}
	}
	return nil
}

// cut returns the first n bytes of b and what follows. It is not ok if n is
// below least or b is shorter.
func cut(b []byte, n, least int) (head, rest []byte, ok bool) {
	if n < least || n > len(b) {
		return nil, nil, false
	}
	return b[:n:n], b[n:], true
}

// u16 reads two bytes at offset i, as a length; -1 if b is too short for it.
func u16(b []byte, i int) int {
	if len(b) < i+2 {
		return -1
	}
	return int(binary.BigEndian.Uint16(b[i:]))
}

func roundUp8(n int) int { return (n + 7) &^ 7 }

// prefixLen returns how many leading bits of mask are set, and not ok if
// others are set as well.
func prefixLen(mask []byte) (n int, ok bool) {
	n, size := net.IPMask(mask).Size()
	return n, size != 0
}
