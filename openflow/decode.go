package openflow

import (
	"encoding/binary"
	"errors"
	"fmt"
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
	protoICMPv6       = 58
	vlanPresent       = 0x1000
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

// readMatch reads the fields of a match. unsupported tells that Match cannot
// express all of it.
func readMatch(b []byte) (m Match, unsupported bool) {
	list, known := make([]oxm, 0, 8), true
	for len(b) > 0 {
		raw, rest, ok := cutField(b)
		if !ok {
			return m, true
		}
		b = rest
		for _, f := range raw.parts() {
			o, ok := f.oxm()
			known = known && ok
			if o.mask != (value{}) { // otherwise it takes any packet
				o.put(&m, o)
				list = append(list, o)
			}
		}
	}
	return m, !known || !m.is(list)
}

// rawField is a field that may be in no table. No mask: all bits.
type rawField struct {
	id          uint32 // class<<8 | field number
	value, mask []byte
}

func cutField(b []byte) (f rawField, rest []byte, ok bool) {
	if len(b) < 4 {
		return f, nil, false
	}
	f.id = fieldID(b)
	f.value, rest, ok = cut(b[4:], int(b[3]), 0)
	if masked := b[2]&1 != 0; masked && ok {
		half := len(f.value) / 2
		f.value, f.mask = f.value[:half], f.value[half:]
		ok = len(f.value) == len(f.mask)
	}
	return f, rest, ok
}

// fieldID reads the header of a field, less the bit of a mask and the length.
func fieldID(b []byte) uint32 { return uint32(binary.BigEndian.Uint16(b))<<8 | uint32(b[2]>>1) }

// parts are the two registers of a pair: Open vSwitch lists a match with one of
// them as one with a pair. Any other field is its only part.
func (f rawField) parts() []rawField {
	const pair, reg0 = 0x8001, 0x0001_00
	if f.id>>8 != pair || len(f.value) != 8 {
		return []rawField{f}
	}
	even, odd := rawField{id: reg0 + f.id&0x7f*2, value: f.value[:4]}, rawField{id: reg0 + f.id&0x7f*2 + 1, value: f.value[4:]}
	if f.mask != nil {
		even.mask, odd.mask = f.mask[:4], f.mask[4:]
	}
	return []rawField{even, odd}
}

// oxm returns the field as one of the table.
func (f rawField) oxm() (o oxm, ok bool) {
	if o.field = fieldWithID(f.id); o.field == nil || o.width != len(f.value) {
		return oxm{}, false
	}
	copy(o.value[16-o.width:], f.value)
	copy(o.mask[16-o.width:], allBits[:])
	if f.mask != nil {
		copy(o.mask[16-o.width:], f.mask)
	}
	return o, true
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
	for _, t := range actionTypes {
		if t.kind == kind {
			if a := t.read(body); a != nil {
				return a
			}
		}
	}
	return unknownAction(fmt.Sprintf("action_%d(%x)", kind, body))
}

// actionTypes are OpenFlow's numbers of actions, and how each is read from what
// follows number and length; nil is one that no flow of ours has.
var actionTypes = []struct {
	kind uint16
	read func(body []byte) Action
}{
	{0, readOutput},
	{17, readPushVLAN},
	{18, func([]byte) Action { return PopVLAN{} }},
	{24, func([]byte) Action { return DecTTL{} }},
	{25, readSetField},
	{28, readMove},
}

func readOutput(body []byte) Action {
	if len(body) != 12 {
		return nil
	}
	return Output(binary.BigEndian.Uint32(body))
}

func readPushVLAN(body []byte) Action {
	if u16(body, 0) != tpid {
		return nil
	}
	return PushVLAN{}
}

func readSetField(body []byte) Action {
	f, _, whole := cutField(body)
	o, known := f.oxm()
	if !whole || !known || !o.exact() {
		return nil
	}
	return SetField{o.field, o.value}
}

// readMove reads copy_field: the width and two offsets in bits, two bytes of
// padding, and the headers of two fields.
func readMove(body []byte) Action {
	if len(body) < 16 || binary.BigEndian.Uint32(body[2:]) != 0 {
		return nil
	}
	a := MoveField{fieldWithID(fieldID(body[8:])), fieldWithID(fieldID(body[12:]))}
	if a.from == nil || a.to == nil || u16(body, 0) != 8*a.from.width {
		return nil
	}
	return a
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
