package openflow

import (
	"encoding/binary"
	"fmt"
	"iter"

	"github.com/fairlead-cni/fairlead/openflow/internal/nx"
	"github.com/fairlead-cni/fairlead/openflow/internal/ofconn"
)

// change is one thing to do to the flow table, or to a group.
type change struct {
	delete, modify bool
	flow           *Flow
	// group is the group that is added, modified or deleted, in place of a flow.
	group *nx.Group
	// rawMatch is the ofp_match of a flow to delete, as the switch gave it, where flow cannot express it.
	rawMatch []byte
}

// encodeBundle makes of changes one ordered, atomic bundle: open, one message per change in their order, commit. The
// messages' transaction IDs count up from first, which is also the bundle's ID. A message is valid until the next one
// is asked for: there is never more than one. At a change that cannot be encoded the bundle is discarded.
func encodeBundle(first uint32, changes []change, failed *error) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		last, xid := uint16(nx.BundleCommit), first+1
		b := nx.BundleControl(nil, first, first, nx.BundleOpen)
		for i := range changes {
			if !yield(b) {
				return
			}
			if b, *failed = changes[i].encode(nx.BundleAdd(b[:0], first, xid), xid); *failed != nil {
				*failed = fmt.Errorf("encoding %s: %w", changes[i].text(), *failed)
				last = nx.BundleDiscard
				break
			}
			b = ofconn.Finish(b, 0)
			xid++
		}
		if last == nx.BundleDiscard || yield(b) {
			yield(nx.BundleControl(b[:0], first, xid, last))
		}
	}
}

// encode appends one flow mod or group mod. A flow that is there already is replaced by adding it again, which is
// atomic. Modify would leave the old cookie.
func (c *change) encode(b []byte, xid uint32) ([]byte, error) {
	if c.group != nil {
		return c.groupMod(b, xid), nil
	}
	f, start := *c.flow, len(b)
	if c.delete {
		f.Actions = nil // they may be of another program, and are not looked at
	}
	if c.rawMatch != nil {
		f.Match = Match{} // rawMatch is sent
	}
	b = nx.FlowMod(b, xid, c.delete, f.Cookie(), f.Table, f.Priority)
	var err error
	if c.rawMatch != nil {
		b = append(b, c.rawMatch...)
	} else if b, err = f.Match.encode(b); err != nil {
		return b, err
	}
	b, err = appendInstructions(b, f.Actions)
	return ofconn.Finish(b, start), err
}

// encode appends an ofp_match.
func (m *Match) encode(b []byte) ([]byte, error) {
	var sent Match
	start := len(b)
	b = append(b, 0, 1, 0, 0) // of OpenFlow fields
	for o := range m.fields {
		b = o.append(b)
		o.in.put(&sent, o)
	}
	if sent != *m {
		return b, fmt.Errorf("no encoding for match %s", m)
	}
	return nx.Pad(b, start, len(b)-start), nil
}

// appendInstructions appends what a flow does.
func appendInstructions(b []byte, actions []Action) ([]byte, error) {
	var to []byte
	start := len(b)
	b = append(b, 0, instrApply, 0, 0, 0, 0, 0, 0)
	for _, a := range actions {
		n := len(b)
		if table, ok := a.(Goto); ok {
			to = []byte{0, instrGoto, 0, 8, byte(table), 0, 0, 0}
		} else if b = a.encode(b); len(b) == n {
			return b, fmt.Errorf("no encoding for action %s", a)
		}
	}
	if len(b) == start+8 { // nothing to apply
		b = b[:start]
	} else {
		b = nx.Pad(b, start, len(b)-start)
	}
	return append(b, to...), nil
}

// append appends the field with its header.
func (o *oxm) append(b []byte) []byte {
	if o.exact() {
		return nx.Field(b, o.id, o.value[16-o.width:], nil)
	}
	return nx.Field(b, o.id, o.value[16-o.width:], o.mask[16-o.width:])
}

// mustIdentify fills in what ofnet knows of fields.
func mustIdentify(fields []*field) []*field {
	for _, f := range fields {
		if f.ofnet != "" {
			f.id, f.width = nx.MustIdentify(f.ofnet)
		}
	}
	return fields
}

func (a Output) encode(b []byte) []byte {
	return append(binary.BigEndian.AppendUint32(append(b, 0, 0, 0, 16), uint32(a)), 255, 255, 0, 0, 0, 0, 0, 0)
}
func (DecTTL) encode(b []byte) []byte      { return append(b, 0, 24, 0, 8, 0, 0, 0, 0) }
func (PopVLAN) encode(b []byte) []byte     { return append(b, 0, 18, 0, 8, 0, 0, 0, 0) }
func (a PushVLAN) encode(b []byte) []byte  { return append(b, 0, 17, 0, 8, byte(a>>8), byte(a), 0, 0) }
func (a Resubmit) encode(b []byte) []byte  { return nx.Resubmit(b, uint8(a)) }
func (a Conntrack) encode(b []byte) []byte { return nx.Conntrack(a).Append(b) }
func (a Learn) encode(b []byte) []byte     { return nx.Learn(a).Append(b) }

func (a Conjunction) encode(b []byte) []byte { return nx.Conjunction(b, a.ID, a.Number, a.Of) }

func (a ToGroup) encode(b []byte) []byte {
	return binary.BigEndian.AppendUint32(append(b, 0, 22, 0, 8), uint32(a))
}

func (a SetField) encode(b []byte) []byte {
	o := oxm{a.field, bits{a.value, allBits}}
	return nx.Pad(o.append(append(b, 0, 25, 0, 0)), len(b), roundUp8(8+o.width))
}

func (a MoveField) encode(b []byte) []byte {
	b = binary.BigEndian.AppendUint16(append(b, 0, 28, 0, 24), uint16(8*a.from.width))
	b = nx.FieldHeader(append(b, 0, 0, 0, 0, 0, 0), a.from.id, a.from.width, false)
	return append(nx.FieldHeader(b, a.to.id, a.to.width, false), 0, 0, 0, 0)
}

// Goto is an instruction, and what no flow of ours has is never sent.
func (Goto) encode(b []byte) []byte          { return b }
func (unknownAction) encode(b []byte) []byte { return b }
