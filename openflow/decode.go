package openflow

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/fairlead-cni/fairlead/openflow/internal/nx"
	"github.com/fairlead-cni/fairlead/openflow/internal/ofconn"
)

// This file decodes the switch's messages: frames, errors, and the list of flows. It works on the bytes, without
// libOpenflow, which loses arp_sha when decoding (v0.15.0), reads past the end of short messages, and cannot return a
// match that it does not understand, which is needed to delete the flow. Numbers are from OpenFlow 1.5.1, section 7,
// and OVS's nicira-ext.h.

// Types of messages.
const (
	msgSetConfig      = 9
	msgMultipartReply = 19
	msgBundleControl  = 33
)

const (
	multipartMore     = 1 // flag: another part follows
	bundleCommitReply = 5
	instrGoto         = 1
	instrApply        = 4
	protoICMP         = 1
	protoTCP          = 6
	protoUDP          = 17
	protoICMPv6       = 58
	protoSCTP         = 132
	fragNXMatch       = 3 // of Open vSwitch: first fragments have the fields of their payload
)

// isCommitReply reports whether m confirms the commit of a bundle.
func isCommitReply(m ofconn.Message) bool {
	return m.Kind == msgBundleControl && len(m.Body) >= 6 &&
		binary.BigEndian.Uint16(m.Body[4:]) == bundleCommitReply
}

// listed is one flow as the switch lists it.
type listed struct {
	flow   Flow
	cookie uint64
	// limited: the flow has a timeout, flags or an importance. Fairlead's never do.
	limited bool
	// unsupported: flow.Match does not express the whole match; rawMatch does.
	unsupported bool
	rawMatch    []byte
}

// readFlow reads all of a flow that the switch lists.
func readFlow(f nx.ListedFlow) listed {
	l := listed{cookie: f.Cookie(), limited: f.Limited(),
		flow: Flow{Table: f.Table(), Priority: f.Priority(), Kind: KindOf(f.Cookie())}}
	if l.flow.Match, l.unsupported = readMatch(f.Fields); l.unsupported {
		l.rawMatch = f.Match
	}
	l.flow.Actions = readInstructions(f.Instructions)
	return l
}

// readMatch reads the fields of a match. unsupported means that Match cannot express all of it.
func readMatch(b []byte) (m Match, unsupported bool) {
	list, known := make([]oxm, 0, 8), true
	add := func(id uint32, v, mask []byte) {
		if !slices.ContainsFunc(mask, func(b byte) bool { return b != 0 }) {
			return // it matches any packet
		}
		o, ok := oxmOf(id, v, mask)
		if known = known && ok; ok {
			o.in.put(&m, o)
			list = append(list, o)
		}
	}
	for len(b) > 0 {
		id, v, mask, rest, ok := cutField(b)
		if !ok {
			return m, true
		}
		b = rest
		const pair, reg0 = 0x8001, 0x0001_00 // Open vSwitch lists registers in pairs
		if id>>8 == pair && len(v) == 8 && len(mask) == 8 {
			add(reg0+id&0x7f*2, v[:4], mask[:4])
			add(reg0+id&0x7f*2+1, v[4:], mask[4:])
		} else {
			add(id, v, mask)
		}
	}
	return m, !known || !m.is(list)
}

// cutField returns the first field of b.
func cutField(b []byte) (id uint32, v, mask, rest []byte, ok bool) {
	if len(b) < 4 {
		return 0, nil, nil, nil, false
	}
	v, rest, ok = nx.Cut(b[4:], int(b[3]), 0)
	mask = allBits[:min(len(v), len(allBits))]
	if b[2]&1 != 0 {
		v, mask = v[:len(v)/2], v[len(v)/2:]
	}
	return fieldID(b), v, mask, rest, ok
}

// fieldID reads class<<8 | field from the header of a field.
func fieldID(b []byte) uint32 { return uint32(binary.BigEndian.Uint16(b))<<8 | uint32(b[2]>>1) }

// oxmOf returns a field in the table fields.
func oxmOf(id uint32, v, mask []byte) (oxm, bool) {
	f := fieldWithID(id)
	if f == nil || len(v) != f.width || len(mask) != f.width {
		return oxm{}, false
	}
	return oxm{f, bits{valueOf(v), valueOf(mask)}}, true
}

// readInstructions returns the actions of a flow. An action that no flow of Fairlead's has becomes an unknownAction, so
// the result differs from all of Fairlead's.
func readInstructions(b []byte) []Action {
	return readEach(b, 8, func(kind uint16, body []byte) []Action {
		switch kind {
		case instrGoto:
			return []Action{Goto(body[0])}
		case instrApply:
			return readEach(body[4:], 4, readAction)
		}
		return []Action{unknownAction(fmt.Sprintf("instruction_%d(%x)", kind, body))}
	})
}

func readAction(kind uint16, body []byte) []Action {
	for _, t := range actionTypes {
		if t.kind == kind {
			if a := t.read(body); a != nil {
				return []Action{a}
			}
		}
	}
	return []Action{unknownAction(fmt.Sprintf("action_%d(%x)", kind, body))}
}

// readEach reads a list of elements that start with type and length.
func readEach(b []byte, least int, read func(kind uint16, body []byte) []Action) (out []Action) {
	for len(b) > 0 {
		first, rest, ok := nx.Cut(b, nx.U16(b, 2), least)
		if !ok {
			return append(out, unknownAction("?"))
		}
		out, b = append(out, read(binary.BigEndian.Uint16(first), first[4:])...), rest
	}
	return out
}

// actionTypes maps OpenFlow's action types to the decoder of what follows type and length; nil: no flow of Fairlead's
// has it.
var actionTypes = []struct {
	kind uint16
	read func(body []byte) Action
}{
	{0, readOutput},
	{17, func(body []byte) Action { return PushVLAN(nx.U16(body, 0)) }},
	{18, func([]byte) Action { return PopVLAN{} }},
	{24, func([]byte) Action { return DecTTL{} }},
	{22, readToGroup},
	{25, readSetField},
	{28, readMove},
	{nx.Experimenter, readExtension},
}

func readOutput(body []byte) Action {
	if len(body) != 12 {
		return nil
	}
	return Output(binary.BigEndian.Uint32(body))
}

func readToGroup(body []byte) Action {
	if len(body) != 4 {
		return nil
	}
	return ToGroup(binary.BigEndian.Uint32(body))
}

func readExtension(body []byte) Action {
	if table, ok := nx.ReadResubmit(body); ok {
		return Resubmit(table)
	}
	if id, number, of, ok := nx.ReadConjunction(body); ok {
		return Conjunction{id, number, of}
	}
	if c, ok := nx.ReadConntrack(body); ok {
		return Conntrack(c)
	}
	if l, ok := nx.ReadLearn(body); ok {
		return Learn(l)
	}
	if size, ok := nx.ReadCheckLarger(body); ok {
		return CheckLarger(size)
	}
	return nil
}

func readSetField(body []byte) Action {
	id, v, mask, _, whole := cutField(body)
	o, known := oxmOf(id, v, mask)
	if !whole || !known || !o.exact() {
		return nil
	}
	return SetField{o.field, o.value}
}

// readMove reads copy_field: the width and two offsets in bits, two bytes of padding, and the headers of two fields.
func readMove(body []byte) Action {
	if len(body) < 16 || binary.BigEndian.Uint32(body[2:]) != 0 {
		return nil
	}
	a := MoveField{fieldWithID(fieldID(body[8:])), fieldWithID(fieldID(body[12:]))}
	if a.from == nil || a.to == nil || nx.U16(body, 0) != 8*a.from.width {
		return nil
	}
	return a
}
