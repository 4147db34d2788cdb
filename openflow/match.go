package openflow

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/openflow/internal/nx"
)

// EtherType is the type of an Ethernet frame's payload (IEEE 802 numbers).
type EtherType uint16

const (
	IPv4 EtherType = 0x0800
	ARP  EtherType = 0x0806
	IPv6 EtherType = 0x86dd
)

// TPID is the EtherType of a VLAN tag (IEEE 802.1Q).
const TPID = 0x8100

// ICMPv6 message types of neighbour discovery (RFC 4861, section 4), as in Match. NoMessage is the type of a fragment
// without the beginning of the message.
const (
	NoMessage             = 1 + 0
	RouterSolicitation    = 1 + 133
	RouterAdvertisement   = 1 + 134
	NeighborSolicitation  = 1 + 135
	NeighborAdvertisement = 1 + 136
	Redirect              = 1 + 137
)

// ARP operations (RFC 826).
const (
	ARPRequest = 1
	ARPReply   = 2
)

// Source is the value of reg0: where a packet entered the bridge.
type Source uint32

const (
	FromPod     Source = 1
	FromGateway Source = 2
	FromTunnel  Source = 3
	FromBridged Source = 4 // a bridged pod
	FromUplink  Source = 5
)

// Segment is the value of reg1: the underlay segment of a frame of [FromBridged] or [FromUplink]. Each VLAN is one, and
// so is untagged traffic. The zero value is none.
type Segment uint16

// VLANPresent is set in a Segment, and in the field vlan_vid of a frame with a tag.
const VLANPresent = 0x1000

// PriorityTag matches a tag without a VLAN ID. It is not a segment.
const PriorityTag Segment = 2 * VLANPresent

// SizeChecked and TooLarge are added to the segment of a frame after its size was compared, for one destination.
const SizeChecked, TooLarge Segment = 0x2000, 1 << nx.LargerBit

// SegmentOf returns the segment of a VLAN ID, 0 for untagged frames.
func SegmentOf(vlan uint16) Segment { return VLANPresent | Segment(vlan) }

// VLAN returns the VLAN ID, 0 for untagged frames.
func (s Segment) VLAN() uint16 { return uint16(s &^ VLANPresent) }

// Bits are matched bits of a field. The zero value matches any packet; Value has no bits outside Mask.
type Bits struct{ Value, Mask uint16 }

// Port matches one port.
func Port(p uint16) Bits { return Bits{p, 0xffff} }

// PortsBelow matches ports below a power of two.
func PortsBelow(p uint16) Bits { return Bits{0, -p} }

// Stage is the value of reg2, plus 1: what Services have done with the packet.
type Stage uint8

const (
	Untouched Stage = 1 // nothing yet
	Seen      Stage = 2 // it went through conntrack, and is forwarded unchanged
)

// Judgement is the value of reg7 for Egress, of reg8 for Ingress, plus 1: whether policies have judged the packet.
type Judgement uint8

const (
	NotYet   Judgement = 1
	Accepted Judgement = 2
	Pending  Judgement = 3 // not yet, and it must be
)

// States of conntrack, and flags of TCP (ovs-fields(7)).
const (
	CTNew         = 0x01
	CTEstablished = 0x02
	CTRelated     = 0x04
	CTReply       = 0x08
	CTInvalid     = 0x10
	CTTracked     = 0x20

	TCPSyn = 0x02
	TCPAck = 0x10
)

// Match says which packets a flow matches. The zero value of a field matches any packet. Match is comparable, and equal
// ones are the same match to the switch.
//
// OpenFlow requires prerequisites: Src, Dst and all fields of a protocol need its EtherType, and ICMPv6 needs IPv6
// (ovs-fields(7)).
type Match struct {
	InPort uint32 // OpenFlow port number
	Tagged bool   // any VLAN tag
	// VLAN matches frames as sent in a segment: with its tag, or without any. It excludes Tagged.
	VLAN           Segment
	EtherType      EtherType
	EthSrc, EthDst api.MAC
	// TunSrc is the outer source address of a packet out of a tunnel.
	TunSrc netip.Addr
	Source Source
	// Segment is the value of reg1.
	Segment Segment
	// Src and Dst are the addresses of the IP header or, with ARP, its sender
	// and target protocol address (always a whole address). A prefix of length 0 would not be read back: leave it out.
	Src, Dst netip.Prefix
	// Fragment matches fragments of IP packets, including the first.
	Fragment bool
	Protocol uint16 // the IP protocol's number, plus 1; not for ICMPv6
	TTL      uint8  // of IPv4, or the hop limit of IPv6
	ARPOp    uint16
	ARPSha   api.MAC // sender hardware address
	ICMPv6   uint8   // ICMPv6 type, plus 1
	ICMP     uint8   // ICMP type, with protocol 1
	// SrcPort and DstPort are of TCP, UDP or SCTP, as Protocol says; TCPFlags are TCP's.
	SrcPort, DstPort, TCPFlags Bits
	// CTState is the packet's conntrack state.
	CTState Bits
	// CTMark are bits of the mark with which a connection was committed.
	CTMark  Bits
	PktMark Bits // of the kernel's mark, which packets of the userspace datapath do not have
	// CTSrc and CTDst are the addresses of the connection's first packet.
	CTSrc, CTDst netip.Addr
	Stage        Stage
	// Endpoint is the value of reg4: the ID of the Service endpoint that a client had before, or was given.
	Endpoint uint32
	// Judged is the number (reg9) of the pod for which policies judge a packet, Class its peer's (reg5), Group the pod's
	// (reg6), and ConjID that of a matching conjunction. None is ever 0.
	Judged, Class, Group, ConjID uint32
	Egress, Ingress              Judgement
	// NDTarget, and NDSll and NDTll, the source and target link-layer address options, are the fields of neighbour
	// discovery. A match with one of them matches only packets with ICMPv6 code 0.
	NDTarget     netip.Addr
	NDSll, NDTll LinkAddr
}

// hasND reports whether m has a field of neighbour discovery, and so matches the ICMPv6 code, which must be 0 (RFC
// 4861). Without the code in the match, Open vSwitch 3.1 silently omits these fields from the kernel's flows: one valid
// advertisement would let all forged ones of its sender through.
func (m Match) hasND() bool { return m.NDTarget.IsValid() || m.NDSll.Set || m.NDTll.Set }

// LinkAddr is a link-layer address option to match. The zero value matches any packet; one that is Set to the zero MAC
// matches packets without the option, because OVS represents them like that.
type LinkAddr struct {
	Set bool
	MAC api.MAC
}

// String returns the match as ovs-ofctl(8) prints it.
func (m Match) String() string { return strings.TrimSuffix(string(m.appendText(nil)), ",") }

// appendText appends the match, with a comma after each field.
func (m *Match) appendText(b []byte) []byte {
	for o := range m.fields {
		if o.print != nil {
			b = o.print(b, m)
			continue
		}
		b = append(append(b, cmp.Or(o.match, o.name)...), '=')
		b = append(o.in.text(b, o), ',')
	}
	return b
}

// fields calls yield for each field that m has.
func (m *Match) fields(yield func(oxm) bool) {
	for _, f := range fields {
		if b, ok := f.in.get(m); ok {
			clear(b.mask[:16-f.width])
			if !yield(oxm{f, b}) {
				return
			}
		}
	}
}

// is reports whether m has the fields in list and no others.
func (m *Match) is(list []oxm) bool {
	n := 0
	for o := range m.fields {
		if !slices.Contains(list, o) {
			return false
		}
		n++
	}
	return n == len(list)
}
