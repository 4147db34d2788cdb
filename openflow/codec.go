package openflow

import (
	"encoding/binary"
	"errors"
	"fmt"

	"antrea.io/libOpenflow/openflow15"
	"antrea.io/libOpenflow/util"
	"antrea.io/ofnet/ofctrl"

	"github.com/fairlead-cni/fairlead/openflow/internal/nx"
	"github.com/fairlead-cni/fairlead/openflow/internal/ofconn"
)

// change is one thing to do to the flow table, or to a group.
type change struct {
	delete bool
	flow   Flow
	// group is the group that is added, modified or deleted, in place of a flow.
	group  *nx.Group
	modify bool
	// rawMatch is the ofp_match of a flow to delete, as the switch gave it, where flow cannot express it.
	rawMatch []byte
}

const (
	flowModBody = 40
)

// encodeDump asks for all flows of all tables.
func encodeDump(xid uint32) ([]byte, error) {
	body := openflow15.NewFlowStatsRequest()
	body.TableId = openflow15.OFPTT_ALL
	msg := openflow15.NewMpRequest(openflow15.MultipartType_FlowDesc)
	msg.Xid = xid
	msg.Body = append(msg.Body, body)
	return encode(msg)
}

// encodeBundle makes of changes one ordered, atomic bundle: open, one message per change in their order, commit. The
// messages' transaction IDs count up from first, which is also the bundle's ID.
func encodeBundle(first uint32, changes []change) ([][]byte, error) {
	const flags = openflow15.OFPBCT_ATOMIC | openflow15.OFPBCT_ORDERED
	out := make([][]byte, 0, len(changes)+2)
	control := func(kind uint16) error {
		msg := openflow15.NewBundleCtrl(first, kind, flags)
		msg.Xid = first + uint32(len(out))
		r, err := encode(msg)
		out = append(out, r)
		return err
	}
	if err := control(openflow15.OFPBCT_OPEN_REQUEST); err != nil {
		return nil, err
	}
	for _, c := range changes {
		xid := first + uint32(len(out))
		mod, err := encodeChange(xid, c)
		if err != nil {
			return nil, fmt.Errorf("encoding flow %s: %w", c.flow, err)
		}
		add := openflow15.NewBndleAdd(first, flags)
		add.Header.Xid, add.Message = xid, util.NewBuffer(mod)
		r, err := encode(add)
		if err != nil {
			return nil, fmt.Errorf("encoding flow %s: %w", c.flow, err)
		}
		out = append(out, r)
	}
	return out, control(openflow15.OFPBCT_COMMIT_REQUEST)
}

// encodeChange encodes one flow mod. A flow that is there already is replaced
// by adding it again, which is atomic. Modify would leave the old cookie.
func encodeChange(xid uint32, c change) ([]byte, error) {
	if c.group != nil {
		return c.groupMod(xid), nil
	}
	command := openflow15.FC_ADD
	if c.delete {
		command = openflow15.FC_DELETE_STRICT
	}
	f := c.flow
	if c.delete {
		f.Actions = nil // they may be of another program, and are not looked at
	}
	if c.rawMatch != nil {
		f.Match = Match{} // replaced below
	}
	mod, err := flowMod(f, command)
	if err != nil {
		return nil, err
	}
	mod.Xid = xid
	r, err := encode(mod)
	if err == nil && c.rawMatch != nil {
		r = append(r[:ofconn.HeaderLen+flowModBody], c.rawMatch...)
		binary.BigEndian.PutUint16(r[2:], uint16(len(r)))
	}
	return r, err
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
		return nil, fmt.Errorf("no encoding for match %s", f.Match)
	}
	return mod, nil
}

// mustIdentify fills in what ofnet knows of fields.
func mustIdentify(fields []*field) []*field {
	for _, f := range fields {
		if f.ofnet == "" {
			continue
		}
		h, err := openflow15.FindFieldHeaderByName(f.ofnet, false)
		if err != nil {
			panic(err)
		}
		f.id, f.width = uint32(h.Class)<<8|uint32(h.Field), int(h.Length)
	}
	return fields
}

func ofField(o oxm) *openflow15.MatchField {
	of := &openflow15.MatchField{Class: uint16(o.id >> 8), Field: uint8(o.id), Length: uint8(o.width),
		Value: ofBytes(o.value[16-o.width:])}
	if !o.exact() {
		of.HasMask, of.Length, of.Mask = true, 2*of.Length, ofBytes(o.mask[16-o.width:])
	}
	return of
}

func ofBytes(b []byte) *openflow15.ByteArrayField {
	return &openflow15.ByteArrayField{Data: b, Length: uint8(len(b))}
}

type ofAction = ofctrl.OFAction

// extension is an action that is encoded already.
type extension []byte

// GetActionMessage implements ofctrl.OFAction.
func (e extension) GetActionMessage() openflow15.Action { return e }

// GetActionType implements ofctrl.OFAction.
func (extension) GetActionType() string { return "extension" }

// Header implements openflow15.Action.
func (e extension) Header() *openflow15.ActionHeader {
	return &openflow15.ActionHeader{Type: binary.BigEndian.Uint16(e), Length: e.Len()}
}

// Len implements util.Message.
func (e extension) Len() uint16 { return uint16(len(e)) }

// MarshalBinary implements util.Message.
func (e extension) MarshalBinary() ([]byte, error) { return e, nil }

// UnmarshalBinary implements util.Message, and is not used: package nx decodes.
func (extension) UnmarshalBinary([]byte) error { return errors.ErrUnsupported }

func (a Output) ofnet() ofAction    { return ofctrl.NewOutputPort(uint32(a)) }
func (DecTTL) ofnet() ofAction      { return &ofctrl.DecTTLAction{} }
func (PopVLAN) ofnet() ofAction     { return &ofctrl.PopVLANAction{} }
func (a Resubmit) ofnet() ofAction  { return extension(nx.Resubmit(uint8(a))) }
func (a Conntrack) ofnet() ofAction { return extension(nx.Conntrack(a).Marshal()) }
func (a Learn) ofnet() ofAction     { return extension(nx.Learn(a).Marshal()) }
func (a Conjunction) ofnet() ofAction {
	return extension(nx.Conjunction(a.ID, a.Number, a.Of))
}
func (a ToGroup) ofnet() ofAction {
	return extension(binary.BigEndian.AppendUint32([]byte{0, 22, 0, 8}, uint32(a)))
}
func (a PushVLAN) ofnet() ofAction { return &ofctrl.PushVLANAction{EtherType: uint16(a)} }

func (a SetField) ofnet() ofAction {
	return ofctrl.NewSetFieldAction(ofField(oxm{a.field, bits{a.value, allBits}}))
}

func (a MoveField) ofnet() ofAction {
	id := func(f *field) *openflow15.OxmId {
		return openflow15.NewOxmId(uint16(f.id>>8), uint8(f.id), false, uint8(f.width), 0)
	}
	return ofctrl.NewCopyFieldAction(uint16(8*a.from.width), 0, 0, id(a.from), id(a.to))
}

// Goto is an instruction, and what no flow of ours has is never sent.
func (Goto) ofnet() ofAction          { return nil }
func (unknownAction) ofnet() ofAction { return nil }

// encode marshals msg. libOpenflow panics on values that it cannot marshal; here that is an error like any other.
func encode(msg util.Message) (b []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("encoding %T: %v", msg, p)
		}
	}()
	return msg.MarshalBinary()
}

// switchError returns the error that an error message carries.
func switchError(m ofconn.Message) error {
	if len(m.Body) < 4 {
		return ofconn.ErrShort
	}
	kind, code := binary.BigEndian.Uint16(m.Body), binary.BigEndian.Uint16(m.Body[2:])
	vendor := uint32(0)
	if kind == errExperimenter {
		if len(m.Body) < 8 {
			return ofconn.ErrShort
		}
		vendor = binary.BigEndian.Uint32(m.Body[4:])
	}
	return errors.New(ofctrl.GetErrorMessage(kind, code, vendor))
}
