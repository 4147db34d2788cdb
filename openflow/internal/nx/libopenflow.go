package nx

import (
	"encoding/binary"
	"errors"
	"fmt"

	"antrea.io/libOpenflow/openflow15"
	"antrea.io/libOpenflow/util"
)

// MustIdentify returns class<<8 | number and the width in bytes of a field that libOpenflow has by that name.
func MustIdentify(name string) (id uint32, width int) {
	h, err := openflow15.FindFieldHeaderByName(name, false)
	if err != nil {
		panic(err)
	}
	return uint32(h.Class)<<8 | uint32(h.Field), int(h.Length)
}

// FieldID returns libOpenflow's form of a field, by number and width.
func FieldID(id uint32, width int) *openflow15.OxmId {
	return openflow15.NewOxmId(uint16(id>>8), uint8(id), false, uint8(width), 0)
}

// Append appends an encoded message. libOpenflow panics on values that it cannot encode; here that becomes an error.
func Append(b []byte, msg util.Message) (out []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			out, err = b, fmt.Errorf("encoding %T: %v", msg, p)
		}
	}()
	encoded, err := msg.MarshalBinary()
	return append(b, encoded...), err
}

// Extension is an already encoded action. It implements ofctrl.OFAction and openflow15.Action.
type Extension []byte

// GetActionMessage implements ofctrl.OFAction.
func (e Extension) GetActionMessage() openflow15.Action { return e }

// GetActionType implements ofctrl.OFAction.
func (Extension) GetActionType() string { return "extension" }

// Header implements openflow15.Action.
func (e Extension) Header() *openflow15.ActionHeader {
	return &openflow15.ActionHeader{Type: binary.BigEndian.Uint16(e), Length: e.Len()}
}

// Len implements util.Message.
func (e Extension) Len() uint16 { return uint16(len(e)) }

// MarshalBinary implements util.Message.
func (e Extension) MarshalBinary() ([]byte, error) { return e, nil }

// UnmarshalBinary implements util.Message, and is not used: decoding is done elsewhere.
func (Extension) UnmarshalBinary([]byte) error { return errors.ErrUnsupported }
