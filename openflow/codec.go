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

// flowModBody is the length of what comes before the match in the body of a flow mod.
const flowModBody = 40

// encode appends one flow mod or group mod. A flow that is there already is replaced by adding it again, which is
// atomic. Modify would leave the old cookie.
func (c *change) encode(b []byte, xid uint32) ([]byte, error) {
	if c.group != nil {
		return c.groupMod(b, xid), nil
	}
	f, command, start := *c.flow, openflow15.FC_ADD, len(b)
	if c.delete {
		f.Actions = nil // they may be of another program, and are not looked at
		command = openflow15.FC_DELETE_STRICT
	}
	if c.rawMatch != nil {
		f.Match = Match{} // replaced below
	}
	mod, err := flowMod(f, command)
	if err != nil {
		return b, err
	}
	mod.Xid = xid
	if b, err = nx.Append(b, mod); err != nil || c.rawMatch == nil {
		return b, err
	}
	b = append(b[:start+ofconn.HeaderLen+flowModBody], c.rawMatch...)
	return ofconn.Finish(b, start), nil
}

// flowMod translates f into the terms of ofnet.
func flowMod(f Flow, command int) (*openflow15.FlowMod, error) {
	of := &ofctrl.Flow{Table: &ofctrl.Table{TableId: f.Table}, CookieID: f.Cookie()}
	of.Match.Priority = f.Priority
	for _, action := range f.Actions {
		if to, ok := action.(Goto); ok {
			of.Goto(uint8(to))
		} else if encoded := action.ofnet(); encoded != nil {
			of.ApplyAction(encoded)
		} else {
			return nil, fmt.Errorf("no encoding for action %s", action)
		}
	}
	bundled, err := of.GetBundleMessage(command)
	if err != nil {
		return nil, err
	}
	mod, ok := bundled.GetMessage().(*openflow15.FlowMod)
	if !ok {
		return nil, fmt.Errorf("ofnet encoded it as %T", bundled.GetMessage())
	}
	var sent Match
	for o := range f.Match.fields {
		mod.Match.AddField(*ofField(o))
		o.in.put(&sent, o)
	}
	if sent != f.Match {
		return nil, fmt.Errorf("no encoding for match %s", &f.Match)
	}
	return mod, nil
}

func ofField(o oxm) *openflow15.MatchField {
	if o.exact() {
		return nx.Field(o.id, o.value[16-o.width:], nil)
	}
	return nx.Field(o.id, o.value[16-o.width:], o.mask[16-o.width:])
}

// mustIdentify fills in what libOpenflow knows of fields.
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
	return ofctrl.NewSetFieldAction(ofField(oxm{a.field, bits{a.value, allBits}}))
}

func (a MoveField) ofnet() ofAction {
	return ofctrl.NewCopyFieldAction(uint16(8*a.from.width), 0, 0, nx.FieldID(a.from.id, a.from.width),
		nx.FieldID(a.to.id, a.to.width))
}

// Goto is an instruction, and what no flow of ours has is never sent.
func (Goto) ofnet() ofAction          { return nil }
func (unknownAction) ofnet() ofAction { return nil }
