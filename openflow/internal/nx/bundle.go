package nx

import (
	"encoding/binary"

	"github.com/fairlead-cni/fairlead/openflow/internal/ofconn"
)

// Types of messages, and what is in those of flows and bundles (OpenFlow 1.5.1, 7.3.4.2, 7.3.5.2 and 7.3.9).
const (
	msgFlowMod       = 14
	msgBundleControl = 33
	msgBundleAdd     = 34

	flowAdd, flowDeleteStrict = 0, 4
	anything                  = 0xffffffff // no buffer, any port, any group
	allTables                 = 0xff
	multipartFlowDesc         = 1
	bundleFlags               = 1 | 2 // atomic, ordered
)

// What a BundleControl asks for.
const (
	BundleOpen    = 0
	BundleCommit  = 4
	BundleDiscard = 6
)

// BundleControl appends a message about an ordered, atomic bundle.
func BundleControl(b []byte, bundle, xid uint32, what uint16) []byte {
	start := len(b)
	b = binary.BigEndian.AppendUint32(ofconn.Begin(b, msgBundleControl, xid), bundle)
	return ofconn.Finish(append(binary.BigEndian.AppendUint16(b, what), 0, bundleFlags), start)
}

// BundleAdd appends the head of a message that puts another, which follows, into a bundle.
func BundleAdd(b []byte, bundle, xid uint32) []byte {
	return append(binary.BigEndian.AppendUint32(ofconn.Begin(b, msgBundleAdd, xid), bundle), 0, 0, 0, bundleFlags)
}

// FlowMod appends the head of a message that adds a flow, or deletes exactly that one. Match and instructions follow.
func FlowMod(b []byte, xid uint32, del bool, cookie uint64, table uint8, priority uint16) []byte {
	command := uint8(flowAdd)
	if del {
		command = flowDeleteStrict
	}
	b = binary.BigEndian.AppendUint64(ofconn.Begin(b, msgFlowMod, xid), cookie)
	b = append(binary.BigEndian.AppendUint64(b, 0), table, command, 0, 0, 0, 0) // no timeouts
	b = binary.BigEndian.AppendUint16(b, priority)
	for range 3 {
		b = binary.BigEndian.AppendUint32(b, anything)
	}
	return append(b, 0, 0, 0, 0) // flags, importance
}

// ListFlows asks for all flows of all tables.
func ListFlows(xid uint32) []byte {
	b := binary.BigEndian.AppendUint16(nil, multipartFlowDesc)
	b = append(b, 0, 0, 0, 0, 0, 0, allTables, 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, anything)
	b = append(binary.BigEndian.AppendUint32(b, anything), make([]byte, 4+8+8)...) // any cookie
	return ofconn.Encode(msgMultipartRequest, xid, append(b, 0, 1, 0, 4, 0, 0, 0, 0))
}
