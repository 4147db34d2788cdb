package nx

import (
	"bytes"
	"encoding/binary"
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

	ntrVendor       = 0x0000154d // of the property that says how a group selects
	ntrSelection    = 1
	hash            = "hash"
	datapathHash    = "dp_hash"
	methodLen       = 16
	oxmIPv4, oxmIP6 = 0x80001604, 0x80003410 // headers of nw_src and ipv6_src
	oxmTCP, oxmUDP  = 0x80001a02, 0x80001e02 // and of tcp_src and udp_src
)

// MaxBuckets are as many as a group may have that fits into one message, which has at most 64 kB, also when the switch
// lists it.
const MaxBuckets = 500

// Group is a group of type select. Each of its buckets has the same weight.
type Group struct {
	ID      uint32
	Hash    Hash
	Buckets []Bucket
}

// Hash says how a group chooses. The zero value leaves it to the datapath, which goes on without ovs-vswitchd after the
// first connections. Any other hashes the source's address and port, of each connection in ovs-vswitchd: then a Learn
// sees each of them.
type Hash struct {
	IPv6     bool
	Protocol uint8 // IANA's number: TCP or UDP
}

// Bucket is one choice. Its actions are a set, of which Open vSwitch runs one that ends: a Conntrack must look the
// packet up again itself. With Again, there is no Conntrack: the bucket's ID goes into reg4, and the packet to that
// table.
type Bucket struct {
	ID     uint32
	Action Conntrack
	Again  uint8
}

// Equal reports whether g and h are the same on the switch, whatever the order of their buckets.
func (g Group) Equal(h Group) bool {
	byID := func(a, b Bucket) int { return int(int64(a.ID) - int64(b.ID)) }
	return g.ID == h.ID && g.Hash == h.Hash && (slices.Equal(g.Buckets, h.Buckets) || slices.Equal(
		slices.SortedFunc(slices.Values(g.Buckets), byID), slices.SortedFunc(slices.Values(h.Buckets), byID)))
}

// Add returns the message that makes the group.
func (g Group) Add(xid uint32) []byte { return g.mod(xid, groupAdd) }

// Modify returns the message that changes the group.
func (g Group) Modify(xid uint32) []byte { return g.mod(xid, groupModify) }

// DeleteGroup returns the message that deletes a group and the flows that lead to it.
func DeleteGroup(xid, id uint32) []byte { return Group{ID: id}.mod(xid, groupDelete) }

func (g Group) mod(xid uint32, command uint16) []byte {
	b := binary.BigEndian.AppendUint16(nil, command)
	b = append(b, groupSelect, 0)
	b = binary.BigEndian.AppendUint32(b, g.ID)
	var buckets []byte
	for _, x := range g.Buckets {
		buckets = append(buckets, x.marshal()...)
	}
	b = binary.BigEndian.AppendUint16(b, uint16(len(buckets)))
	b = append(b, 0, 0)
	b = binary.BigEndian.AppendUint32(b, allBuckets)
	b = append(b, buckets...)
	if command != groupDelete {
		b = append(b, g.selection()...)
	}
	return ofconn.Encode(msgGroupMod, xid, b)
}

// selection is how the group selects. The datapath hashes addresses and ports; a group that does not ask for it gets a
// hash that leaves out the ports of UDP: all of a client's connections would go to one endpoint.
func (g Group) selection() []byte {
	if g.Hash == (Hash{}) {
		return selection(datapathHash)
	}
	addr, port := uint32(oxmIPv4), uint32(oxmTCP)
	if g.Hash.IPv6 {
		addr = oxmIP6
	}
	if g.Hash.Protocol == udp {
		port = oxmUDP
	}
	return selection(hash, addr, port)
}

func (x Bucket) marshal() []byte {
	action := x.actions()
	b := binary.BigEndian.AppendUint16(nil, uint16(8+len(action)+8))
	b = binary.BigEndian.AppendUint16(b, uint16(len(action)))
	b = append(binary.BigEndian.AppendUint32(b, x.ID), action...)
	b = binary.BigEndian.AppendUint16(append(b, 0, bucketWeight, 0, 8), weight)
	return append(b, 0, 0)
}

func (x Bucket) actions() []byte {
	if x.Again == 0 {
		return x.Action.Marshal()
	}
	b := binary.BigEndian.AppendUint32([]byte{0, setField, 0, 16}, reg4)
	b = append(binary.BigEndian.AppendUint32(b, x.ID), 0, 0, 0, 0)
	return append(b, Resubmit(x.Again)...)
}

// selection is the property that has a group select by a method, and by the hash of whole fields.
func selection(method string, of ...uint32) []byte {
	var fields []byte
	for _, field := range of {
		fields = binary.BigEndian.AppendUint32(fields, field)
		fields = append(fields, bytes.Repeat([]byte{0xff}, int(field&0xff))...)
	}
	b := binary.BigEndian.AppendUint16(nil, experimenter)
	b = binary.BigEndian.AppendUint16(b, uint16(4+4+4+4+methodLen+8+len(fields)))
	b = binary.BigEndian.AppendUint32(b, ntrVendor)
	b = binary.BigEndian.AppendUint32(b, ntrSelection)
	b = append(b, 0, 0, 0, 0)
	b = append(append(b, method...), make([]byte, methodLen-len(method)+8)...)
	b = append(b, fields...)
	for len(b)%8 != 0 {
		b = append(b, 0)
	}
	return b
}

// ListGroups asks for the description of all groups.
func ListGroups(xid uint32) []byte {
	b := binary.BigEndian.AppendUint16(nil, multipartGroup)
	b = append(b, make([]byte, 6)...) // flags, padding
	b = binary.BigEndian.AppendUint32(b, allGroups)
	return ofconn.Encode(msgMultipartRequest, xid, append(b, 0, 0, 0, 0))
}

// Listed is one group as the switch lists it.
type Listed struct {
	Group
	// Known: the group has nothing that a Group cannot say.
	Known bool
}

// ReadGroups reads one part of the list.
func ReadGroups(m ofconn.Message) (out []Listed, err error) {
	if len(m.Body) < 8 || binary.BigEndian.Uint16(m.Body) != multipartGroup {
		return nil, ofconn.ErrShort
	}
	for rest := m.Body[8:]; len(rest) > 0; {
		if len(rest) < groupDescLen {
			return nil, ofconn.ErrShort
		}
		n := int(binary.BigEndian.Uint16(rest))
		if n < groupDescLen || n > len(rest) {
			return nil, ofconn.ErrShort
		}
		out, rest = append(out, readGroup(rest[:n])), rest[n:]
	}
	return out, nil
}

// readGroup reads an ofp_group_desc: length (2), type (1), padding, ID (4), length of buckets (2), padding (6),
// buckets, properties. Whatever it could not read shows when the group is written again.
func readGroup(b []byte) Listed {
	l := Listed{Group: Group{ID: binary.BigEndian.Uint32(b[4:])}}
	size := int(binary.BigEndian.Uint16(b[8:]))
	if b[2] != groupSelect || size > len(b)-groupDescLen {
		return l
	}
	buckets, properties := b[groupDescLen:groupDescLen+size], b[groupDescLen+size:]
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
	for _, l.Hash = range []Hash{{}, {false, tcp}, {false, udp}, {true, tcp}, {true, udp}} {
		if slices.Equal(properties, l.selection()) {
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
	return x, slices.Equal(x.marshal(), b)
}
