package capture

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/net/bpf"

	"github.com/fairlead-cni/fairlead/api"
)

// Filter selects frames by address. The zero value selects all.
type Filter struct {
	// Of are the addresses of one end, and With those of the other; without With, any other end. At most one per family.
	// With both set it also selects ARP, neighbour discovery and ICMP errors of either end.
	Of, With []netip.Addr
	// Tunnel is a tunnel type (api.TunnelGeneve) whose packets, to UDP port Port, are selected by their inner frame. Of a
	// fragmented packet only the first fragment can be selected.
	Tunnel string
	Port   uint16
}

// String describes what is selected.
func (f Filter) String() string {
	if len(f.Of) == 0 {
		return "all packets"
	}
	text := "packets of " + join(f.Of)
	if len(f.With) > 0 {
		text = "packets between " + join(f.Of) + " and " + join(f.With) +
			", and ARP, neighbour discovery and ICMP errors of either"
	}
	switch f.Tunnel {
	case "":
		return text
	case api.TunnelGRE:
		return text + "; also inside of gre packets"
	}
	return fmt.Sprintf("%s; also inside of %s packets (UDP port %d)", text, f.Tunnel, f.Port)
}

func join(addrs []netip.Addr) string {
	var texts []string
	for _, a := range addrs {
		texts = append(texts, a.String())
	}
	return strings.Join(texts, ", ")
}

// Offsets in an untagged frame, and protocol numbers.
const (
	typeAt, tagLen, etherLen = 12, 4, 14

	etherIPv4, etherARP, etherIPv6 = 0x0800, 0x0806, 0x86dd
	etherVLAN, etherQinQ           = 0x8100, 0x88a8
	etherBridged                   = 0x6558 // a frame in a tunnel packet

	fragment4At, protocol4At, source4At, target4At = etherLen + 6, etherLen + 9, etherLen + 12, etherLen + 16
	protocol6At, source6At, target6At, payload6At  = etherLen + 6, etherLen + 8, etherLen + 24, etherLen + 40
	senderOfARPAt, targetOfARPAt                   = etherLen + 14, etherLen + 24
	neighbourAt                                    = payload6At + 8

	icmp, udp, gre, icmp6 = 1, 17, 47, 58
)

// The program's scratch memory: where the frame begins, less its tags, and a protocol.
const frameAt, protocol = 0, 1

// compile returns the program that keeps the first snapLen bytes of the frames that the filter selects.
func (f Filter) compile(snapLen uint32) ([]bpf.Instruction, error) {
	if len(f.Of) == 0 {
		return []bpf.Instruction{bpf.RetConstant{Val: snapLen}}, nil
	}
	p := &program{at: map[string]int{}}
	p.add(bpf.LoadConstant{Dst: bpf.RegA}, bpf.StoreScratch{Src: bpf.RegA, N: frameAt})
	f.frame(p, "outer ", snapLen)
	if f.Tunnel != "" {
		f.tunnel(p)
		f.frame(p, "inner ", snapLen)
	}
	p.add(bpf.RetConstant{Val: 0})
	return p.link()
}

// frame accepts the frame at frameAt, or falls through. The prefix of makes the labels unique to this frame.
func (f Filter) frame(p *program, of string, snapLen uint32) {
	p.add(bpf.LoadScratch{Dst: bpf.RegX, N: frameAt})
	for _, tag := range []string{"tag", "second tag"} {
		p.load(typeAt, 2)
		p.is(etherVLAN, of+"skip "+tag, "")
		p.is(etherQinQ, "", of+"no "+tag)
		p.label(of + "skip " + tag)
		p.add(bpf.TXA{}, bpf.ALUOpConstant{Op: bpf.ALUOpAdd, Val: tagLen}, bpf.TAX{})
		p.label(of + "no " + tag)
	}
	p.add(bpf.StoreScratch{Src: bpf.RegX, N: frameAt})
	p.load(typeAt, 2)
	p.is(etherIPv4, of+"4", "")
	p.is(etherARP, of+"arp", "")
	p.is(etherIPv6, of+"6", of+"end")
	p.label(of + "4")
	f.ipv4(p, of)
	p.label(of + "arp")
	f.arp(p, of)
	p.label(of + "6")
	f.ipv6(p, of)
	p.label(of + "take")
	p.add(bpf.RetConstant{Val: snapLen})
	p.label(of + "end")
}

// family returns the ends' addresses of one family: none, one, or one of each end.
func (f Filter) family(is func(netip.Addr) bool) []netip.Addr {
	with := func(list []netip.Addr) (out []netip.Addr) {
		for _, a := range list {
			if a = a.Unmap(); is(a) {
				out = append(out, a)
			}
		}
		return out
	}
	of, other := with(f.Of), with(f.With)
	if len(f.With) > 0 && (len(of) == 0 || len(other) == 0) {
		return nil
	}
	return slices.Concat(of, other)
}

// words returns the address as the accumulator holds it.
func words(a netip.Addr) (out []uint32) {
	for b := a.AsSlice(); len(b) > 0; b = b[4:] {
		out = append(out, binary.BigEndian.Uint32(b))
	}
	return out
}

// equals compares an address of the frame.
func (p *program) equals(offset uint32, a netip.Addr, yes, no string) {
	all := words(a)
	for i, w := range all {
		p.load(offset+uint32(4*i), 4)
		if i < len(all)-1 {
			p.is(w, "", no)
		} else {
			p.is(w, yes, no)
		}
	}
}

// oneOf jumps to yes if the frame has one of the addresses at the offset, else to no.
func (p *program) oneOf(name string, offset uint32, addrs []netip.Addr, yes, no string) {
	for i, a := range addrs {
		next := fmt.Sprint(name, " ", i+1)
		if i == len(addrs)-1 {
			next = no
		}
		p.equals(offset, a, yes, next)
		p.label(fmt.Sprint(name, " ", i+1))
	}
}

// ends jumps to yes for a packet of the single address, or between the two addresses, and to no for all others.
func (p *program) ends(name string, source, target uint32, addrs []netip.Addr, yes, no string) {
	if len(addrs) == 1 {
		p.equals(source, addrs[0], yes, name+" to")
		p.label(name + " to")
		p.equals(target, addrs[0], yes, no)
		return
	}
	p.equals(source, addrs[0], "", name+" back")
	p.equals(target, addrs[1], yes, no)
	p.label(name + " back")
	p.equals(source, addrs[1], "", no)
	p.equals(target, addrs[0], yes, no)
}

func (f Filter) ipv4(p *program, of string) {
	addrs := f.family(netip.Addr.Is4)
	if len(addrs) > 0 {
		p.ends(of+"4", source4At, target4At, addrs, of+"take", of+"4 error")
		p.label(of + "4 error")
		p.oneOf(of+"4 target", target4At, addrs, of+"icmp", of+"end")
		p.label(of + "icmp")
		p.load(protocol4At, 1)
		p.is(icmp, "", of+"end")
		p.load(fragment4At, 2)
		p.has(0x1fff, of+"end", "")
		payload4(p)
		p.load(0, 1)
		for _, kind := range []uint32{3, 11, 12} { // unreachable, time exceeded, parameter problem: RFC 792
			p.is(kind, of+"take", "")
		}
	}
	p.jump(of + "end")
}

// payload4 makes X point past the IPv4 header.
func payload4(p *program) {
	p.load(etherLen, 1)
	p.add(bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: 0xf}, bpf.ALUOpConstant{Op: bpf.ALUOpShiftLeft, Val: 2},
		bpf.ALUOpConstant{Op: bpf.ALUOpAdd, Val: etherLen}, bpf.ALUOpX{Op: bpf.ALUOpAdd}, bpf.TAX{})
}

func (f Filter) arp(p *program, of string) {
	addrs := f.family(netip.Addr.Is4)
	if len(addrs) > 0 {
		p.oneOf(of+"sender", senderOfARPAt, addrs, of+"take", of+"no sender")
		p.label(of + "no sender")
		p.oneOf(of+"target", targetOfARPAt, addrs, of+"take", of+"end")
	}
	p.jump(of + "end")
}

// ipv6 selects neighbour solicitations and advertisements by their target address (RFC 4861), and ICMP errors (RFC
// 4443), in packets without extension headers.
func (f Filter) ipv6(p *program, of string) {
	addrs := f.family(netip.Addr.Is6)
	if len(addrs) > 0 {
		p.ends(of+"6", source6At, target6At, addrs, of+"take", of+"icmp6")
		p.label(of + "icmp6")
		p.load(protocol6At, 1)
		p.is(icmp6, "", of+"end")
		p.load(payload6At, 1)
		for _, kind := range []uint32{135, 136} {
			p.is(kind, of+"neighbour", "")
		}
		for _, kind := range []uint32{1, 2, 3, 4} {
			p.is(kind, of+"6 error", "")
		}
		p.jump(of + "end")
		p.label(of + "neighbour")
		p.oneOf(of+"about", neighbourAt, addrs, of+"take", of+"end")
		p.label(of + "6 error")
		p.oneOf(of+"6 target", target6At, addrs, of+"take", of+"end")
	}
	p.jump(of + "end")
}

// tunnel sets frameAt to the inner frame of a tunnel packet, and rejects all other packets.
func (f Filter) tunnel(p *program) {
	p.add(bpf.LoadScratch{Dst: bpf.RegX, N: frameAt})
	p.load(typeAt, 2)
	p.is(etherIPv4, "over 4", "")
	p.is(etherIPv6, "over 6", "no tunnel")
	p.label("over 4")
	p.load(fragment4At, 2)
	p.has(0x1fff, "no tunnel", "")
	p.load(protocol4At, 1)
	p.add(bpf.StoreScratch{Src: bpf.RegA, N: protocol})
	payload4(p)
	p.jump("header")
	p.label("over 6")
	p.load(protocol6At, 1)
	p.add(bpf.StoreScratch{Src: bpf.RegA, N: protocol}, bpf.TXA{},
		bpf.ALUOpConstant{Op: bpf.ALUOpAdd, Val: payload6At}, bpf.TAX{})
	p.label("header")
	p.add(bpf.LoadScratch{Dst: bpf.RegA, N: protocol})
	if f.Tunnel == api.TunnelGRE {
		f.gre(p)
	} else {
		f.overUDP(p)
	}
	p.jump("inside")
	p.label("no tunnel")
	p.add(bpf.RetConstant{Val: 0})
	p.label("inside")
}

// overUDP handles geneve (RFC 8926) and vxlan (RFC 7348): X points to the UDP header, and A holds the protocol.
func (f Filter) overUDP(p *program) {
	const portAt, headers, lengthAt, typeInGeneve, optionsOfGeneve = 2, 16, 8, 10, 0x3f
	p.is(udp, "", "no tunnel")
	p.load(portAt, 2)
	p.is(uint32(f.Port), "", "no tunnel")
	p.add(bpf.LoadConstant{Dst: bpf.RegA})
	if f.Tunnel == api.TunnelGeneve {
		p.load(typeInGeneve, 2)
		p.is(etherBridged, "", "no tunnel")
		p.load(lengthAt, 1)
		p.add(bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: optionsOfGeneve}, bpf.ALUOpConstant{Op: bpf.ALUOpShiftLeft, Val: 2})
	}
	p.add(bpf.ALUOpX{Op: bpf.ALUOpAdd}, bpf.ALUOpConstant{Op: bpf.ALUOpAdd, Val: headers},
		bpf.StoreScratch{Src: bpf.RegA, N: frameAt})
}

// gre handles RFC 2890: X points to the GRE header, and A holds the protocol.
func (f Filter) gre(p *program) {
	const typeInGRE, header, field = 2, 4, 4
	p.is(gre, "", "no tunnel")
	p.load(typeInGRE, 2)
	p.is(etherBridged, "", "no tunnel")
	p.add(bpf.TXA{}, bpf.ALUOpConstant{Op: bpf.ALUOpAdd, Val: header}, bpf.StoreScratch{Src: bpf.RegA, N: frameAt})
	for _, flag := range []uint32{0x8000, 0x2000, 0x1000} { // checksum, key, sequence number
		without := fmt.Sprintf("without %#x", flag)
		p.load(0, 2)
		p.has(flag, "", without)
		p.add(bpf.LoadScratch{Dst: bpf.RegA, N: frameAt}, bpf.ALUOpConstant{Op: bpf.ALUOpAdd, Val: field},
			bpf.StoreScratch{Src: bpf.RegA, N: frameAt})
		p.label(without)
	}
}
