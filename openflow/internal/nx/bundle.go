package nx

import (
	"encoding/binary"

	"antrea.io/libOpenflow/openflow15"

	"github.com/fairlead-cni/fairlead/openflow/internal/ofconn"
)

// What a BundleControl asks for.
const (
	BundleOpen    = openflow15.OFPBCT_OPEN_REQUEST
	BundleCommit  = openflow15.OFPBCT_COMMIT_REQUEST
	BundleDiscard = openflow15.OFPBCT_DISCARD_REQUEST
)

const (
	msgBundleControl = 33 // OpenFlow 1.5.1, 7.1
	msgBundleAdd     = 34
	bundleFlags      = byte(openflow15.OFPBCT_ATOMIC | openflow15.OFPBCT_ORDERED)
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
