package nx

import (
	"encoding/binary"

	"antrea.io/libOpenflow/openflow15"
)

// MustIdentify returns class<<8 | number and the width in bytes of a field that libOpenflow has by that name.
func MustIdentify(name string) (id uint32, width int) {
	h, err := openflow15.FindFieldHeaderByName(name, false)
	if err != nil {
		panic(err)
	}
	return uint32(h.Class)<<8 | uint32(h.Field), int(h.Length)
}

// Field appends a field with its header. Without a mask all of it counts.
func Field(b []byte, id uint32, value, mask []byte) []byte {
	b = FieldHeader(b, id, len(value)+len(mask), mask != nil)
	return append(append(b, value...), mask...)
}

// FieldHeader appends class, number and length of a field.
func FieldHeader(b []byte, id uint32, length int, masked bool) []byte {
	number := uint8(id) << 1
	if masked {
		number |= 1
	}
	return append(binary.BigEndian.AppendUint16(b, uint16(id>>8)), number, uint8(length))
}

// Pad writes the length of what starts there, and pads it to 8 bytes.
func Pad(b []byte, start, length int) []byte {
	binary.BigEndian.PutUint16(b[start+2:], uint16(length))
	for (len(b)-start)%8 != 0 {
		b = append(b, 0)
	}
	return b
}
