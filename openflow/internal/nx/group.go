package nx

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"slices"

	"github.com/fairlead-cni/fairlead/openflow/internal/ofconn"
)

// Types of messages (OpenFlow 1.5.1, 7.1.1), and numbers of group mods.
const (
	msgGroupMod         = 15
	msgMultipartRequest = 18

	groupAdd, groupModify, groupDelete = 0, 1, 2

	groupSelect    = 1
	allGroups      = 0xfffffffc
	allBuckets     = 0xffffffff
	multipartGroup = 7
	groupDescLen   = 16

	bucketWeight = 0 // property of a bucket
	weight       = 100

	ntrVendor       = 0x0000154d // of the property with the selection method
	ntrSelection    = 1
	hash            = "hash"
	datapathHash    = "dp_hash"
	methodLen       = 16
	oxmIPv4, oxmIP6 = 0x80001604, 0x80003410 // headers of nw_src and ipv6_src
	oxmTCP, oxmUDP  = 0x80001a02, 0x80001e02 // and of tcp_src and udp_src
)

// MaxBuckets is how many buckets fit into one message, of at most 64 kB, also when the switch lists the group.
const MaxBuckets = 500

// Group is a group of type select. All buckets have the same weight.
type Group struct {
	ID      uint32
	Hash    Hash
	Buckets []Bucket
}

// Hash says how a group chooses. The zero value leaves it to the datapath, which needs no ovs-vswitchd after the first
// connections. Any other hashes the source address and port, for each connection in ovs-vswitchd: then a Learn sees
// each of them.
type Hash struct {
	IPv6     bool
	Protocol uint8 // IANA's number: TCP or UDP
}

// Bucket is one choice. Its actions are an action set, of which Open vSwitch runs one final action: a Conntrack must
// look the packet up again itself. With Again, there is no Conntrack: the bucket's ID goes to reg4, and the packet to
// that table.
type Bucket struct {
	ID     uint32
	Action Conntrack
	Again  uint8
}

// Equal reports whether g and h are the same on the switch, regardless of the order of buckets.
func (g Group) Equal(h Group) bool {
	byID := func(a, b Bucket) int { return int(int64(a.ID) - int64(b.ID)) }
	return g.ID == h.ID && g.Hash == h.Hash && (slices.Equal(g.Buckets, h.Buckets) || slices.Equal(
		slices.SortedFunc(slices.Values(g.Buckets), byID), slices.SortedFunc(slices.Values(h.Buckets), byID)))
}

// HashTo adds all that Equal compares to h.
func (g Group) HashTo(h *maphash.Hash) {
	maphash.WriteComparable(h, g.ID)
	maphash.WriteComparable(h, g.Hash)
	for _, b := range g.Buckets {
		maphash.WriteComparable(h, b)
	}
}

// Add appends the message that adds the group.
func (g Group) Add(b []byte, xid uint32) []byte { return g.mod(b, xid, groupAdd) }

// Modify appends the message that changes the group.
func (g Group) Modify(b []byte, xid uint32) []byte { return g.mod(b, xid, groupModify) }

// DeleteGroup appends the message that deletes a group and the flows that lead to it.
func DeleteGroup(b []byte, xid, id uint32) []byte { return Group{ID: id}.mod(b, xid, groupDelete) }

func (g Group) mod(b []byte, xid uint32, command uint16) []byte {
	start := len(b)
	b = binary.BigEndian.AppendUint16(ofconn.Begin(b, msgGroupMod, xid), command)
	b = append(b, groupSelect, 0)
	b = binary.BigEndian.AppendUint32(b, g.ID)
	b = append(b, 0, 0, 0, 0) // the length of all buckets, and padding
	b = binary.BigEndian.AppendUint32(b, allBuckets)
	buckets := len(b)
	for _, x := range g.Buckets {
		b = x.append(b)
	}
	binary.BigEndian.PutUint16(b[buckets-8:], uint16(len(b)-buckets))
	if command != groupDelete {
		b = g.selection(b)
	}
	return ofconn.Finish(b, start)
}

// selection appends the selection method. The datapath hashes addresses and ports; the default hash omits UDP ports:
// all of a client's connections would go to one endpoint.
func (g Group) selection(b []byte) []byte {
	if g.Hash == (Hash{}) {
		return selection(b, datapathHash)
	}
	addr, port := uint32(oxmIPv4), uint32(oxmTCP)
	if g.Hash.IPv6 {
		addr = oxmIP6
	}
	if g.Hash.Protocol == udp {
		port = oxmUDP
	}
	return selection(b, hash, addr, port)
}

func (x Bucket) append(b []byte) []byte {
	start := len(b)
	b = binary.BigEndian.AppendUint32(append(b, 0, 0, 0, 0), x.ID) // the lengths of the bucket and its actions
	b = x.actions(b)
	binary.BigEndian.PutUint16(b[start:], uint16(len(b)-start+8))
	binary.BigEndian.PutUint16(b[start+2:], uint16(len(b)-start-8))
	b = binary.BigEndian.AppendUint16(append(b, 0, bucketWeight, 0, 8), weight)
	return append(b, 0, 0)
}

func (x Bucket) actions(b []byte) []byte {
	if x.Again == 0 {
		return x.Action.Append(b)
	}
	b = binary.BigEndian.AppendUint32(append(b, 0, setField, 0, 16), reg4)
	b = append(binary.BigEndian.AppendUint32(b, x.ID), 0, 0, 0, 0)
	return Resubmit(b, x.Again)
}

// selection appends the property that makes a group select by a method and the hash of whole fields.
func selection(b []byte, method string, of ...uint32) []byte {
	start := len(b)
	b = append(binary.BigEndian.AppendUint16(b, Experimenter), 0, 0)
	b = binary.BigEndian.AppendUint32(b, ntrVendor)
	b = binary.BigEndian.AppendUint32(b, ntrSelection)
	b = append(b, 0, 0, 0, 0)
	var name [methodLen + 8]byte // and its parameter
	copy(name[:], method)
	b = append(b, name[:]...)
	for _, field := range of {
		b = binary.BigEndian.AppendUint32(b, field)
		for range field & 0xff {
			b = append(b, 0xff)
		}
	}
	return pad(b, start, len(b)-start)
}

// ListGroups returns the request for the descriptions of all groups.
func ListGroups(xid uint32) []byte {
	b := binary.BigEndian.AppendUint16(nil, multipartGroup)
	b = append(b, make([]byte, 6)...) // flags, padding
	b = binary.BigEndian.AppendUint32(b, allGroups)
	return ofconn.Encode(msgMultipartRequest, xid, append(b, 0, 0, 0, 0))
}

// Listed is one group as the switch lists it.
type Listed struct {
	Group
	// Known: the group has nothing that a Group cannot express.
	Known bool
}

// ReadGroups reads one part of the list.
func ReadGroups(m ofconn.Message, yield func(Listed)) error {
	if len(m.Body) < 8 || binary.BigEndian.Uint16(m.Body) != multipartGroup {
		return ofconn.ErrShort
	}
	for rest := m.Body[8:]; len(rest) > 0; {
		if len(rest) < groupDescLen {
			return ofconn.ErrShort
		}
		n := int(binary.BigEndian.Uint16(rest))
		if n < groupDescLen || n > len(rest) {
			return ofconn.ErrShort
		}
		yield(readGroup(rest[:n]))
		rest = rest[n:]
	}
	return nil
}

// readGroup reads an ofp_group_desc: length (2), type (1), padding, ID (4), length of buckets (2), padding (6),
// buckets, properties. Anything that it could not read shows when the group is encoded again.
func readGroup(b []byte) Listed {
	l := Listed{Group: Group{ID: binary.BigEndian.Uint32(b[4:])}}
	size := int(binary.BigEndian.Uint16(b[8:]))
	if b[2] != groupSelect || size > len(b)-groupDescLen {
		return l
	}
	buckets, properties := b[groupDescLen:groupDescLen+size], b[groupDescLen+size:]
	if len(buckets) >= 8 { // their number if all have the length of the first
		l.Buckets = make([]Bucket, 0, len(buckets)/max(8, int(binary.BigEndian.Uint16(buckets))))
	}
	for len(buckets) >= 8 {
		n := int(binary.BigEndian.Uint16(buckets))
		if n < 8 || n > len(buckets) {
			return l
		}
		x, ok := readBucket(buckets[:n])
		if !ok {
			return l
		}
		l.Buckets, buckets = append(l.Buckets, x), buckets[n:]
	}
	var again [128]byte
	for _, l.Hash = range [...]Hash{{}, {false, tcp}, {false, udp}, {true, tcp}, {true, udp}} {
		if bytes.Equal(properties, l.selection(again[:0])) {
			l.Known = len(buckets) == 0
			return l
		}
	}
	return l
}

func readBucket(b []byte) (x Bucket, ok bool) {
	x.ID = binary.BigEndian.Uint32(b[4:])
	size := int(binary.BigEndian.Uint16(b[2:]))
	if size < 4 || 8+size > len(b) {
		return x, false
	}
	const again = 16 // what is before the resubmit
	if x.Action, ok = ReadConntrack(b[8+4 : 8+size]); !ok && size > again+4 {
		x.Action = Conntrack{}
		x.Again, ok = ReadResubmit(b[8+again+4 : 8+size])
	}
	if !ok {
		return x, false
	}
	var same [256]byte
	return x, bytes.Equal(x.append(same[:0]), b)
}
