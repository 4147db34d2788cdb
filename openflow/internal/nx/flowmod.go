package nx

import (
	"encoding/binary"

	"github.com/fairlead-cni/fairlead/openflow/internal/ofconn"
)

const (
	msgFlowMod      = 14
	matchOXM        = 1 // OpenFlow 1.5.1, 7.2.3
	instructionGoto = 1 // 7.2.7
	instructionDo   = 4
)

// FlowMod appends a flow mod up to its match (OpenFlow 1.5.1, 7.3.4.2): of a flow without timeouts and flags, of no
// buffered packet. A deletion matches any cookie, output port and group.
func FlowMod(b []byte, xid uint32, cookie uint64, table, command uint8, priority uint16) []byte {
	b = binary.BigEndian.AppendUint64(ofconn.Begin(b, msgFlowMod, xid), cookie)
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0, table, command, 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, priority)
	return append(b, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 0)
}

// BeginMatch appends the head of a match, the length of which follows.
func BeginMatch(b []byte) []byte { return append(b, 0, matchOXM, 0, 0) }

// Field appends a field with its value (OpenFlow 1.5.1, 7.2.3.2), and the mask unless the match is exact.
func Field(b []byte, id uint32, value, mask []byte, exact bool) []byte {
	head := byte(id << 1)
	if exact {
		mask = nil
	} else {
		head |= 1
	}
	b = append(binary.BigEndian.AppendUint16(b, uint16(id>>8)), head, byte(len(value)+len(mask)))
	return append(append(b, value...), mask...)
}

// Pad appends zeros so that what begins at start has a multiple of 8 bytes.
func Pad(b []byte, start int) []byte {
	for (len(b)-start)%8 != 0 {
		b = append(b, 0)
	}
	return b
}

// BeginActions appends the head of the instruction to apply the actions that follow, up to EndActions, which removes it
// if there are none.
func BeginActions(b []byte) []byte { return append(b, 0, instructionDo, 0, 0, 0, 0, 0, 0) }

// EndActions ends what BeginActions began at start.
func EndActions(b []byte, start int) []byte {
	if len(b) == start+8 {
		return b[:start]
	}
	return ofconn.Finish(b, start)
}

// GotoTable appends the instruction to continue in a table.
func GotoTable(b []byte, table uint8) []byte {
	return append(b, 0, instructionGoto, 0, 8, table, 0, 0, 0)
}
