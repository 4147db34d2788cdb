package nx

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/fairlead-cni/fairlead/openflow/internal/ofconn"
)

const (
	multipartPortDesc = 13
	anyPort           = 0xffffffff // OFPP_ANY
	portLen           = 40         // of a struct ofp_port without properties
	portNameLen       = 16
)

// Port is a port's name and configuration.
type Port struct {
	Name  string
	Flags uint32
}

// ListPorts returns the request for the descriptions of all ports (OpenFlow 1.5.1, 7.3.5.5).
func ListPorts(xid uint32) []byte {
	body := binary.BigEndian.AppendUint16(nil, multipartPortDesc)
	body = append(body, make([]byte, 6)...) // flags, padding
	body = binary.BigEndian.AppendUint32(body, anyPort)
	return ofconn.Encode(msgMultipartRequest, xid, append(body, make([]byte, 4)...))
}

// ReadPorts reads one part of the list: each struct ofp_port has number (4 bytes), length (2), padding (2), address
// (6), padding (2), name (16), config (4), state (4) and properties.
func ReadPorts(m ofconn.Message) (out []Port, err error) {
	if len(m.Body) < 8 || binary.BigEndian.Uint16(m.Body) != multipartPortDesc {
		return nil, fmt.Errorf("not a port description reply: %w", ofconn.ErrShort)
	}
	for rest := m.Body[8:]; len(rest) > 0; {
		if len(rest) < portLen {
			return nil, fmt.Errorf("decoding a port description: %w", ofconn.ErrShort)
		}
		length := int(binary.BigEndian.Uint16(rest[4:]))
		if length < portLen || length > len(rest) {
			return nil, fmt.Errorf("decoding a port description: %w", ofconn.ErrShort)
		}
		name, _, _ := bytes.Cut(rest[16:16+portNameLen], []byte{0})
		out = append(out, Port{string(name), binary.BigEndian.Uint32(rest[16+portNameLen:])})
		rest = rest[length:]
	}
	return out, nil
}
