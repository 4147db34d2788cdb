package openflow

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/fairlead-cni/fairlead/api"
)

// EtherType is the type of an Ethernet frame's payload (IEEE 802 numbers).
type EtherType uint16

const (
	IPv4 EtherType = 0x0800
	ARP  EtherType = 0x0806
	IPv6 EtherType = 0x86dd
)

// ICMPv6 message types of neighbour discovery (RFC 4861, section 4).
const (
	routerSolicitation    = 133
	routerAdvertisement   = 134
	neighborSolicitation  = 135
	neighborAdvertisement = 136
	redirect              = 137
)

// ARP operations (RFC 826).
const (
	arpRequest = 1
	arpReply   = 2
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

// Segment is the value of reg1: the part of the underlay that a frame of
// [FromBridged] or [FromUplink] is in. Each VLAN is one, and so is what travels
// untagged. The zero value is none.
type Segment uint16

// segmentOf is the segment of a VLAN ID, 0 for untagged frames.
func segmentOf(vlan uint16) Segment { return vlanPresent | Segment(vlan) }

// vlan is the VLAN ID, 0 for untagged frames.
func (s Segment) vlan() uint16 { return uint16(s &^ vlanPresent) }

// Match says which packets a flow takes. The zero value of a field takes any
// packet. Match is comparable, and two equal ones are one match to the switch.
//
// OpenFlow wants prerequisites: Src, Dst and all fields of a protocol need its
// EtherType, and ICMPv6 needs IPv6 (ovs-fields(7)).
type Match struct {
	InPort uint32 // OpenFlow port number
	Tagged bool   // any VLAN tag
	// VLAN takes frames as they travel in a segment: with its tag, or without
	// any. It excludes Tagged.
	VLAN           Segment
	EtherType      EtherType
	EthSrc, EthDst api.MAC
	// TunSrc is the outer source address of a packet out of a tunnel.
	TunSrc netip.Addr
	Source Source
	// Segment is that of reg1.
	Segment Segment
	// Src and Dst are the addresses of the IP header or, with ARP, its sender
	// and target protocol address (always a whole address).
	Src, Dst netip.Prefix
	// Fragment takes fragments of IP packets, the first one included.
	Fragment bool
	ARPOp    uint16
	ARPSha   api.MAC // sender hardware address
	ICMPv6   uint8   // ICMPv6 type
	// NDTarget, and NDSll and NDTll, the source and target link-layer address
	// options, are the fields of neighbour discovery. A match with one of them
	// takes packets with ICMPv6 code 0 only.
	NDTarget     netip.Addr
	NDSll, NDTll LinkAddr
}

// hasND tells whether m has a field of neighbour discovery, and so matches the
// ICMPv6 code, which must be 0 (RFC 4861). Open vSwitch 3.1 would drop these
// fields, without a word, from the kernel's flows of a match without the code:
// one true advertisement would let all false ones of its sender through.
func (m Match) hasND() bool { return m.NDTarget.IsValid() || m.NDSll.Set || m.NDTll.Set }

// LinkAddr is a link-layer address option to match. The zero value matches any
// packet; one that is Set to the zero MAC matches packets without the option,
// because that is how OVS reads them.
type LinkAddr struct {
	Set bool
	MAC api.MAC
}

// String returns the match as ovs-ofctl(8) prints it.
func (m Match) String() string {
	var b strings.Builder
	add := func(format string, args ...any) {
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, format, args...)
	}
	if m.EtherType != 0 {
		add("%s", m.protocol())
	}
	if m.Source != 0 {
		add("reg0=%#x", uint32(m.Source))
	}
	if m.Segment != 0 {
		add("reg1=%#x", uint32(m.Segment))
	}
	if m.TunSrc.IsValid() {
		add("%s=%s", tunName(m.TunSrc, "src"), m.TunSrc)
	}
	if m.InPort != 0 {
		add("in_port=%d", m.InPort)
	}
	if m.Tagged {
		add("vlan_tci=0x1000/0x1000")
	}
	switch {
	case m.VLAN == segmentOf(0):
		add("vlan_tci=0x0000/0x1fff")
	case m.VLAN != 0:
		add("dl_vlan=%d", m.VLAN.vlan())
	}
	if m.EthSrc != (api.MAC{}) {
		add("dl_src=%s", m.EthSrc)
	}
	if m.EthDst != (api.MAC{}) {
		add("dl_dst=%s", m.EthDst)
	}
	m.addAddrs(add)
	if m.Fragment {
		add("nw_frag=yes")
	}
	if m.ARPOp != 0 {
		add("arp_op=%d", m.ARPOp)
	}
	if m.ARPSha != (api.MAC{}) {
		add("arp_sha=%s", m.ARPSha)
	}
	if m.ICMPv6 != 0 {
		add("icmp_type=%d", m.ICMPv6)
	}
	if m.hasND() {
		add("icmp_code=0")
	}
	if m.NDTarget.IsValid() {
		add("nd_target=%s", m.NDTarget)
	}
	if m.NDSll.Set {
		add("nd_sll=%s", m.NDSll.MAC)
	}
	if m.NDTll.Set {
		add("nd_tll=%s", m.NDTll.MAC)
	}
	return b.String()
}

func (m Match) addAddrs(add func(string, ...any)) {
	src, dst := "nw_src", "nw_dst"
	switch m.EtherType {
	case ARP:
		src, dst = "arp_spa", "arp_tpa"
	case IPv6:
		src, dst = "ipv6_src", "ipv6_dst"
	}
	if m.Src.IsValid() {
		add("%s=%s", src, prefixText(m.Src))
	}
	if m.Dst.IsValid() {
		add("%s=%s", dst, prefixText(m.Dst))
	}
}

// protocol is the keyword that ovs-ofctl writes for the ethertype.
func (m Match) protocol() string {
	switch {
	case m.EtherType == IPv4:
		return "ip"
	case m.EtherType == ARP:
		return "arp"
	case m.EtherType == IPv6 && m.ICMPv6 != 0:
		return "icmp6"
	case m.EtherType == IPv6:
		return "ipv6"
	}
	return fmt.Sprintf("dl_type=%#04x", uint16(m.EtherType))
}

// tunName is OVS's name of a tunnel's outer address: it has one per family.
func tunName(a netip.Addr, end string) string {
	if a.Is4() {
		return "tun_" + end
	}
	return "tun_ipv6_" + end
}

func prefixText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}
