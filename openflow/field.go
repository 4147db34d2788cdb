package openflow

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"github.com/fairlead-cni/fairlead/api"
)

// field is one packet or metadata field. Matches are encoded, decoded and printed by iterating over the table of
// fields.
type field struct {
	name  string // in ovs-fields(7), and in the action set_field
	match string // in matches that ovs-ofctl prints, where it is another name
	move  string // in the action move; empty if no flow uses it there
	ofnet string // in ofnet, if id and width are not set
	in    access
	// print appends the field to a match as ovs-ofctl prints it, if that is not name=value.
	print func(b []byte, m *Match) []byte

	id    uint32 // class<<8 | field number
	width int    // bytes
}

// access reads and writes the part of a Match that a field stands for: get is not ok if it matches any packet. text
// appends a value as ovs-ofctl prints it.
type access struct {
	get  func(m *Match) (b bits, ok bool)
	put  func(m *Match, o oxm)
	text textFunc
}

type textFunc func(b []byte, o oxm) []byte

// bits are a field's value and mask, both in network byte order at the end of the array.
type (
	bits  struct{ value, mask value }
	value [16]byte
)

// oxm is a field of a message.
type oxm struct {
	*field
	bits
}

// fields are in the order in which ovs-ofctl prints them. OpenFlow requires a field after its prerequisites, and this
// order satisfies that.
var fields = mustIdentify([]*field{
	{name: "pkt_mark", ofnet: "NXM_NX_PKT_MARK", in: bitsField(func(m *Match) *Bits { return &m.PktMark }, always, markText)},
	{name: "conj_id", ofnet: "NXM_NX_CONJ_ID", in: number(func(m *Match) *uint32 { return &m.ConjID })},
	{name: "ct_state", ofnet: "NXM_NX_CT_STATE",
		in: bitsField(func(m *Match) *Bits { return &m.CTState }, always, flags("new", "est", "rel", "rpl", "inv", "trk"))},
	{name: "ct_mark", ofnet: "NXM_NX_CT_MARK", in: bitsField(func(m *Match) *Bits { return &m.CTMark }, always, markText)},
	{name: "ct_nw_src", ofnet: "NXM_NX_CT_NW_SRC",
		in: address(func(m *Match) *netip.Addr { return &m.CTSrc }, netip.Addr.Is4)},
	{name: "ct_ipv6_src", ofnet: "NXM_NX_CT_IPV6_SRC",
		in: address(func(m *Match) *netip.Addr { return &m.CTSrc }, netip.Addr.Is6)},
	{name: "ct_nw_dst", ofnet: "NXM_NX_CT_NW_DST",
		in: address(func(m *Match) *netip.Addr { return &m.CTDst }, netip.Addr.Is4)},
	{name: "ct_ipv6_dst", ofnet: "NXM_NX_CT_IPV6_DST",
		in: address(func(m *Match) *netip.Addr { return &m.CTDst }, netip.Addr.Is6)},
	{name: "eth_type", ofnet: "OXM_OF_ETH_TYPE", print: printProtocol,
		in: number(func(m *Match) *EtherType { return &m.EtherType })},
	{name: "reg0", ofnet: "NXM_NX_REG0", in: register(func(m *Match) *Source { return &m.Source })},
	{name: "reg1", ofnet: "NXM_NX_REG1", in: register(func(m *Match) *Segment { return &m.Segment })},
	{name: "reg2", ofnet: "NXM_NX_REG2", in: fromOne(func(m *Match) *Stage { return &m.Stage }, hexadecimal)},
	{name: "reg4", ofnet: "NXM_NX_REG4", in: register(func(m *Match) *uint32 { return &m.Endpoint })},
	{name: "reg5", ofnet: "NXM_NX_REG5", in: register(func(m *Match) *uint32 { return &m.Class })},
	{name: "reg6", ofnet: "NXM_NX_REG6", in: register(func(m *Match) *uint32 { return &m.Group })},
	{name: "reg7", ofnet: "NXM_NX_REG7", in: fromOne(func(m *Match) *Judgement { return &m.Egress }, hexadecimal)},
	{name: "reg8", ofnet: "NXM_NX_REG8", in: fromOne(func(m *Match) *Judgement { return &m.Ingress }, hexadecimal)},
	{name: "reg9", ofnet: "NXM_NX_REG9", in: register(func(m *Match) *uint32 { return &m.Judged })},
	{name: "tun_src", ofnet: "NXM_NX_TUN_IPV4_SRC",
		in: address(func(m *Match) *netip.Addr { return &m.TunSrc }, netip.Addr.Is4)},
	{name: "tun_ipv6_src", ofnet: "NXM_NX_TUN_IPV6_SRC",
		in: address(func(m *Match) *netip.Addr { return &m.TunSrc }, netip.Addr.Is6)},
	{name: "in_port", ofnet: "OXM_OF_IN_PORT", in: number(func(m *Match) *uint32 { return &m.InPort })},
	{name: "vlan_vid", ofnet: "OXM_OF_VLAN_VID", print: printVLAN, in: access{getVLAN, putVLAN, decimal}},
	{name: "eth_src", match: "dl_src", move: "NXM_OF_ETH_SRC", ofnet: "OXM_OF_ETH_SRC",
		in: ethernet(func(m *Match) *api.MAC { return &m.EthSrc })},
	{name: "eth_dst", match: "dl_dst", move: "NXM_OF_ETH_DST", ofnet: "OXM_OF_ETH_DST",
		in: ethernet(func(m *Match) *api.MAC { return &m.EthDst })},
	{name: "nw_src", ofnet: "OXM_OF_IPV4_SRC", in: prefix(func(m *Match) *netip.Prefix { return &m.Src }, inIPv4)},
	{name: "ipv6_src", ofnet: "OXM_OF_IPV6_SRC", in: prefix(func(m *Match) *netip.Prefix { return &m.Src }, inIPv6)},
	{name: "arp_spa", move: "NXM_OF_ARP_SPA", ofnet: "OXM_OF_ARP_SPA",
		in: prefix(func(m *Match) *netip.Prefix { return &m.Src }, inARP)},
	{name: "nw_dst", ofnet: "OXM_OF_IPV4_DST", in: prefix(func(m *Match) *netip.Prefix { return &m.Dst }, inIPv4)},
	{name: "ipv6_dst", ofnet: "OXM_OF_IPV6_DST", in: prefix(func(m *Match) *netip.Prefix { return &m.Dst }, inIPv6)},
	{name: "arp_tpa", move: "NXM_OF_ARP_TPA", ofnet: "OXM_OF_ARP_TPA",
		in: prefix(func(m *Match) *netip.Prefix { return &m.Dst }, inARP)},
	{name: "nw_proto", ofnet: "OXM_OF_IP_PROTO", print: printOtherProtocol, in: access{getNumber, putNumber, decimal}},
	{name: "nw_ttl", ofnet: "NXM_NX_IP_TTL", in: number(func(m *Match) *uint8 { return &m.TTL })},
	{name: "nw_frag", ofnet: "NXM_NX_IP_FRAG", in: access{getFragment, putFragment, appendYes}},
	{name: "arp_op", ofnet: "OXM_OF_ARP_OP", in: number(func(m *Match) *uint16 { return &m.ARPOp })},
	{name: "arp_sha", move: "NXM_NX_ARP_SHA", ofnet: "OXM_OF_ARP_SHA",
		in: ethernet(func(m *Match) *api.MAC { return &m.ARPSha })},
	{name: "tcp_src", match: "tp_src", ofnet: "OXM_OF_TCP_SRC",
		in: bitsField(func(m *Match) *Bits { return &m.SrcPort }, ofProtocol(protoTCP), portText)},
	{name: "tcp_dst", match: "tp_dst", ofnet: "OXM_OF_TCP_DST",
		in: bitsField(func(m *Match) *Bits { return &m.DstPort }, ofProtocol(protoTCP), portText)},
	{name: "udp_src", match: "tp_src", ofnet: "OXM_OF_UDP_SRC",
		in: bitsField(func(m *Match) *Bits { return &m.SrcPort }, ofProtocol(protoUDP), portText)},
	{name: "udp_dst", match: "tp_dst", ofnet: "OXM_OF_UDP_DST",
		in: bitsField(func(m *Match) *Bits { return &m.DstPort }, ofProtocol(protoUDP), portText)},
	{name: "sctp_src", match: "tp_src", ofnet: "OXM_OF_SCTP_SRC",
		in: bitsField(func(m *Match) *Bits { return &m.SrcPort }, ofProtocol(protoSCTP), portText)},
	{name: "sctp_dst", match: "tp_dst", ofnet: "OXM_OF_SCTP_DST",
		in: bitsField(func(m *Match) *Bits { return &m.DstPort }, ofProtocol(protoSCTP), portText)},
	{name: "tcp_flags", id: 0x8000<<8 | 42, width: 2, // which libOpenflow does not have
		in: bitsField(func(m *Match) *Bits { return &m.TCPFlags }, ofProtocol(protoTCP),
			flags("fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr", "ns", "[200]", "[400]", "[800]"))},
	{name: "icmp_type", ofnet: "OXM_OF_ICMPV4_TYPE", in: number(func(m *Match) *uint8 { return &m.ICMP })},
	{name: "icmpv6_type", match: "icmp_type", ofnet: "OXM_OF_ICMPV6_TYPE",
		in: fromOne(func(m *Match) *uint8 { return &m.ICMPv6 }, decimal)},
	{name: "icmpv6_code", match: "icmp_code", ofnet: "OXM_OF_ICMPV6_CODE", in: implied(0, (*Match).hasND, decimal)},
	{name: "nd_target", ofnet: "OXM_OF_IPV6_ND_TARGET",
		in: address(func(m *Match) *netip.Addr { return &m.NDTarget }, netip.Addr.IsValid)},
	{name: "nd_sll", ofnet: "OXM_OF_IPV6_ND_SLL", in: option(func(m *Match) *LinkAddr { return &m.NDSll })},
	{name: "nd_tll", ofnet: "OXM_OF_IPV6_ND_TLL", in: option(func(m *Match) *LinkAddr { return &m.NDTll })},
	// Only in actions.
	{name: "reg3", ofnet: "NXM_NX_REG3", in: unmatched(hexadecimal)},
	{name: "tun_dst", ofnet: "NXM_NX_TUN_IPV4_DST", in: unmatched(addrText)},
	{name: "tun_ipv6_dst", ofnet: "NXM_NX_TUN_IPV6_DST", in: unmatched(addrText)},
	{name: "arp_tha", move: "NXM_NX_ARP_THA", ofnet: "OXM_OF_ARP_THA", in: unmatched(hardware)},
})

// mustField returns the field of that name, which the table must have.
func mustField(name string) *field {
	return fields[slices.IndexFunc(fields, func(f *field) bool { return f.name == name })]
}

// fieldWithID returns nil for a field not in the table.
func fieldWithID(id uint32) *field {
	for _, f := range fields {
		if f.id == id {
			return f
		}
	}
	return nil
}

// protocols are the keywords of ovs-ofctl, by Match.Protocol.
var protocols = map[uint16]string{protoICMP + 1: "icmp", protoTCP + 1: "tcp", protoUDP + 1: "udp", protoSCTP + 1: "sctp"}

// printProtocol prints ovs-ofctl's keyword for ethertype and protocol.
func printProtocol(b []byte, m *Match) []byte {
	switch {
	case protocols[m.Protocol] != "" && m.EtherType == IPv4:
		return append(append(b, protocols[m.Protocol]...), ',')
	case protocols[m.Protocol] != "" && m.EtherType == IPv6 && m.Protocol != protoICMP+1:
		return append(append(b, protocols[m.Protocol]...), "6,"...)
	case m.EtherType == IPv4:
		return append(b, "ip,"...)
	case m.EtherType == ARP:
		return append(b, "arp,"...)
	case m.EtherType == IPv6 && m.ICMPv6 != 0:
		return append(b, "icmp6,"...)
	case m.EtherType == IPv6:
		return append(b, "ipv6,"...)
	}
	return fmt.Appendf(b, "dl_type=%#04x,", uint16(m.EtherType))
}

func printOtherProtocol(b []byte, m *Match) []byte {
	named := protocols[m.Protocol] != "" && (m.EtherType == IPv4 || m.EtherType == IPv6 && m.Protocol != protoICMP+1)
	if m.Protocol == 0 || named {
		return b
	}
	return fmt.Appendf(b, "nw_proto=%d,", m.Protocol-1)
}

func printVLAN(b []byte, m *Match) []byte {
	switch {
	case m.VLAN == SegmentOf(0):
		return append(b, "vlan_tci=0x0000/0x1fff,"...)
	case m.VLAN != 0:
		return fmt.Appendf(b, "dl_vlan=%d,", m.VLAN&^PriorityTag&^VLANPresent)
	}
	return append(b, "vlan_tci=0x1000/0x1000,"...)
}

func decimal(b []byte, o oxm) []byte { return strconv.AppendUint(b, uint64(o.value.number()), 10) }
func hexadecimal(b []byte, o oxm) []byte {
	if o.value.number() == 0 {
		return append(b, '0')
	}
	return fmt.Appendf(b, "%#x", o.value.number())
}

func hardware(b []byte, o oxm) []byte  { return append(b, o.mac().String()...) }
func appendYes(b []byte, _ oxm) []byte { return append(b, "yes"...) }

func addrText(b []byte, o oxm) []byte {
	if p := o.prefix(); !p.IsSingleIP() {
		return p.AppendTo(b)
	}
	return o.addr().AppendTo(b)
}

// part accesses a part that matches any packet if it is zero.
func part[T comparable](of func(*Match) *T, to func(T) value, from func(oxm) T, text textFunc) access {
	return access{
		func(m *Match) (b bits, ok bool) {
			if x := *of(m); x != *new(T) {
				b, ok = bits{to(x), allBits}, true
			}
			return b, ok
		},
		func(m *Match, o oxm) { *of(m) = from(o) },
		text,
	}
}

func number[T ~uint8 | ~uint16 | ~uint32](of func(*Match) *T) access {
	return part(of, func(x T) value { return numberValue(uint32(x)) },
		func(o oxm) T { return T(o.value.number()) }, decimal)
}

func register[T ~uint16 | ~uint32](of func(*Match) *T) access {
	a := number(of)
	a.text = hexadecimal
	return a
}

func ethernet(of func(*Match) *api.MAC) access { return part(of, macValue, oxm.mac, hardware) }

func option(of func(*Match) *LinkAddr) access {
	return part(of, func(a LinkAddr) value { return macValue(a.MAC) },
		func(o oxm) LinkAddr { return LinkAddr{true, o.mac()} }, hardware)
}

// address accesses an address of the field's family, or of any.
func address(of func(*Match) *netip.Addr, is func(netip.Addr) bool) access {
	a := part(of, addrValue, oxm.addr, addrText)
	get := a.get
	a.get = func(m *Match) (bits, bool) { b, ok := get(m); return b, ok && is(*of(m)) }
	return a
}

// prefix accesses a prefix in the field's header.
func prefix(of func(*Match) *netip.Prefix, is func(*Match, netip.Addr) bool) access {
	return access{
		func(m *Match) (b bits, ok bool) {
			if p := *of(m); p.IsValid() && is(m, p.Addr()) {
				b, ok = bits{addrValue(p.Addr()), maskValue(p.Bits(), p.Addr().BitLen())}, true
			}
			return b, ok
		},
		func(m *Match, o oxm) { *of(m) = o.prefix() },
		addrText,
	}
}

func inARP(m *Match, _ netip.Addr) bool  { return m.EtherType == ARP }
func inIPv4(m *Match, a netip.Addr) bool { return m.EtherType != ARP && a.Is4() }
func inIPv6(m *Match, a netip.Addr) bool { return m.EtherType != ARP && a.Is6() }

// bitsField accesses bits of a field that exists if is says so.
func bitsField(of func(*Match) *Bits, is func(*Match) bool, text textFunc) access {
	return access{
		func(m *Match) (b bits, ok bool) {
			if x := *of(m); x.Mask != 0 && is(m) {
				b, ok = bits{numberValue(uint32(x.Value)), numberValue(uint32(x.Mask))}, true
			}
			return b, ok
		},
		func(m *Match, o oxm) { *of(m) = Bits{uint16(o.value.number()), uint16(o.mask.number())} },
		text,
	}
}

func always(*Match) bool { return true }

func ofProtocol(p uint16) func(*Match) bool { return func(m *Match) bool { return m.Protocol == p+1 } }

func portText(b []byte, o oxm) []byte {
	if o.exact() {
		return decimal(b, o)
	}
	return fmt.Appendf(b, "%#x/%#x", o.value.number(), o.mask.number())
}

func markText(b []byte, o oxm) []byte {
	b = hexadecimal(b, o)
	if o.exact() {
		return b
	}
	return fmt.Appendf(b, "/%#x", o.mask.number())
}

// flags prints each matched bit by name, lowest first: +new-est.
func flags(names ...string) textFunc {
	return func(b []byte, o oxm) []byte {
		for i, name := range names {
			switch bit := uint32(1) << i; {
			case o.mask.number()&bit == 0:
			case o.value.number()&bit != 0:
				b = append(append(b, '+'), name...)
			default:
				b = append(append(b, '-'), name...)
			}
		}
		return b
	}
}

// fromOne accesses a field with a value one less than in a Match.
func fromOne[T ~uint8](of func(*Match) *T, text textFunc) access {
	return access{
		func(m *Match) (bits, bool) { return bits{numberValue(uint32(*of(m)) - 1), allBits}, *of(m) != 0 },
		func(m *Match, o oxm) { *of(m) = T(o.value.number() + 1) },
		text,
	}
}

// implied is a field that some matches must have, with a fixed value.
func implied(x uint32, is func(*Match) bool, text textFunc) access {
	return access{func(m *Match) (bits, bool) { return bits{numberValue(x), allBits}, is(m) }, func(*Match, oxm) {}, text}
}

// unmatched is a field that is only used in actions.
func unmatched(text textFunc) access {
	return implied(0, func(*Match) bool { return false }, text)
}

// getVLAN and putVLAN are for a field that says both whether there is a tag and which.
func getVLAN(m *Match) (b bits, ok bool) {
	switch {
	case m.VLAN == SegmentOf(0), m.VLAN == PriorityTag:
		return bits{numberValue(uint32(m.VLAN - VLANPresent)), allBits}, true
	case m.VLAN != 0:
		return bits{numberValue(uint32(m.VLAN)), allBits}, true
	}
	return bits{numberValue(VLANPresent), numberValue(VLANPresent)}, m.Tagged
}

func putVLAN(m *Match, o oxm) {
	if m.Tagged = o.mask.number() == VLANPresent; !m.Tagged {
		m.VLAN = SegmentOf(uint16(o.value.number()))
		if o.value.number() == VLANPresent {
			m.VLAN = PriorityTag
		}
	}
}

func getNumber(m *Match) (bits, bool) {
	number := cmp.Or(uint32(m.Protocol), protoICMPv6+1) - 1
	return bits{numberValue(number), allBits}, m.Protocol != 0 || m.ICMPv6 != 0
}

func putNumber(m *Match, o oxm) {
	if n := o.value.number(); n != protoICMPv6 {
		m.Protocol = uint16(n) + 1
	}
}

// getFragment matches the one bit that all fragments have (ovs-fields(7)).
func getFragment(m *Match) (bits, bool) { return bits{numberValue(1), numberValue(1)}, m.Fragment }
func putFragment(m *Match, _ oxm)       { m.Fragment = true }

var allBits = value{255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255}

func valueOf(b []byte) (v value) {
	copy(v[len(v)-len(b):], b)
	return v
}

func numberValue(x uint32) value     { return valueOf(binary.BigEndian.AppendUint32(nil, x)) }
func macValue(m api.MAC) value       { return valueOf(m[:]) }
func addrValue(a netip.Addr) value   { return valueOf(a.AsSlice()) }
func maskValue(bits, size int) value { return valueOf(net.CIDRMask(bits, size)) }
func (v value) number() uint32       { return binary.BigEndian.Uint32(v[12:]) }

func (o oxm) mac() api.MAC { return api.MAC(o.value[10:]) }

func (o oxm) addr() netip.Addr {
	a, _ := netip.AddrFromSlice(o.value[16-o.width:])
	return a
}

// prefix returns the zero Prefix if the mask is not a prefix's.
func (o oxm) prefix() (p netip.Prefix) {
	if ones, size := net.IPMask(o.mask[16-o.width:]).Size(); size > 0 {
		p = netip.PrefixFrom(o.addr(), ones)
	}
	return p
}

// exact reports whether the whole field is matched.
func (o oxm) exact() bool { return string(o.mask[16-o.width:]) == string(allBits[:o.width]) }
