package openflow

import (
	"encoding/binary"
	"fmt"
	"iter"

	"antrea.io/libOpenflow/openflow15"
	"antrea.io/ofnet/ofctrl"

	"github.com/fairlead-cni/fairlead/openflow/internal/nx"
	"github.com/fairlead-cni/fairlead/openflow/internal/ofconn"
)

// change is one change to a flow or a group.
type change struct {
	delete, modify bool
	flow           *Flow
	// group is the group that is added, modified or deleted, in place of a flow.
	group *nx.Group
	// rawMatch is the ofp_match of a flow to delete, as the switch listed it, if flow cannot express it.
	rawMatch []byte
}

// encodeBundle encodes changes as one ordered, atomic bundle: open, one message per change in order, commit. The
// messages' transaction IDs count up from first, which is also the bundle's ID. A message is valid until the next one
// is requested: there is never more than one. If a change cannot be encoded the bundle is discarded.
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

// encode appends one flow mod or group mod. An existing flow is replaced by adding it again, which is atomic. Modify
// would keep the old cookie.
func (c *change) encode(b []byte, xid uint32) (_ []byte, err error) {
	start, f := len(b), c.flow
	switch {
	case c.group != nil:
		return c.groupMod(b, xid), nil
	case c.rawMatch != nil:
		b = append(nx.FlowMod(b, xid, 0, f.Table, openflow15.FC_DELETE_STRICT, f.Priority), c.rawMatch...)
	case c.delete: // its actions, which may be another program's, and its cookie are ignored
		b, err = f.Match.encode(nx.FlowMod(b, xid, 0, f.Table, openflow15.FC_DELETE_STRICT, f.Priority))
	default:
		cookie, _ := f.cookieIn(b[start:]) // has room, and is overwritten
		if b, err = f.Match.encode(nx.FlowMod(b, xid, cookie, f.Table, openflow15.FC_ADD, f.Priority)); err == nil {
			b, err = f.encodeActions(b)
		}
	}
	return ofconn.Finish(b, start), err
}

func (m *Match) encode(b []byte) ([]byte, error) {
	start, sent := len(b), Match{}
	b = nx.BeginMatch(b)
	for o := range m.fields {
		b = o.encode(b)
		o.in.put(&sent, o)
	}
	if sent != *m {
		return b, fmt.Errorf("no encoding for match %s", m)
	}
	return nx.Pad(ofconn.Finish(b, start), start), nil
}

func (o *oxm) encode(b []byte) []byte {
	return nx.Field(b, o.id, o.value[16-o.width:], o.mask[16-o.width:], o.exact())
}

func (f *Flow) encodeActions(b []byte) (_ []byte, err error) {
	start, next := len(b), []byte(nil)
	b = nx.BeginActions(b)
	for _, action := range f.Actions {
		if to, ok := action.(Goto); ok {
			next = nx.GotoTable(nil, uint8(to))
		} else if encoded := action.ofnet(); encoded == nil {
			return b, fmt.Errorf("no encoding for action %s", action)
		} else if b, err = nx.Append(b, encoded.GetActionMessage()); err != nil {
			return b, err
		}
	}
	return append(nx.EndActions(b, start), next...), nil
}

// mustIdentify fills in the ID and width from libOpenflow.
func mustIdentify(fields []*field) []*field {
	for _, f := range fields {
		if f.ofnet != "" {
			f.id, f.width = nx.MustIdentify(f.ofnet)
		}
	}
	return fields
}

type ofAction = ofctrl.OFAction

func (DecTTL) ofnet() ofAction      { return &ofctrl.DecTTLAction{} }
func (PopVLAN) ofnet() ofAction     { return &ofctrl.PopVLANAction{} }
func (a PushVLAN) ofnet() ofAction  { return &ofctrl.PushVLANAction{EtherType: uint16(a)} }
func (a Resubmit) ofnet() ofAction  { return nx.Extension(nx.Resubmit(nil, uint8(a))) }
func (a Conntrack) ofnet() ofAction { return nx.Extension(nx.Conntrack(a).Append(nil)) }
func (a Learn) ofnet() ofAction     { return nx.Extension(nx.Learn(a).Append(nil)) }

func (a CheckLarger) ofnet() ofAction { return nx.Extension(nx.CheckLarger(nil, uint16(a))) }

func (a Conjunction) ofnet() ofAction { return nx.Extension(nx.Conjunction(nil, a.ID, a.Number, a.Of)) }

func (a ToGroup) ofnet() ofAction {
	return nx.Extension(binary.BigEndian.AppendUint32([]byte{0, 22, 0, 8}, uint32(a)))
}

func (a Output) ofnet() ofAction {
	if a == OutputController { // with 128 bytes of the packet
		return nx.Extension{0, 0, 0, 16, 255, 255, 255, 253, 0, 128, 0, 0, 0, 0, 0, 0}
	}
	return ofctrl.NewOutputPort(uint32(a))
}

func (a SetField) ofnet() ofAction {
	o := oxm{a.field, bits{a.value, allBits}}
	return nx.Extension(ofconn.Finish(nx.Pad(o.encode([]byte{0, 25, 0, 0}), 0), 0))
}

func (a MoveField) ofnet() ofAction {
	return ofctrl.NewCopyFieldAction(uint16(8*a.from.width), 0, 0, nx.FieldID(a.from.id, a.from.width),
		nx.FieldID(a.to.id, a.to.width))
}

// Goto is an instruction, and an unknown action is never sent.
func (Goto) ofnet() ofAction          { return nil }
func (unknownAction) ofnet() ofAction { return nil }
