package reach

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/capture"
	pure "github.com/fairlead-cni/fairlead/diagnose/reach"
)

const (
	etherLen, typeAt, tagLen = 14, 12, 4
	// deepestOuter is the largest offset of the addresses of a frame's first IP header: behind two VLAN tags, in IPv4.
	// Those inside a tunnel begin later.
	deepestOuter = 34
	// Offset and length of the addresses in a header, in bytes: RFC 791, RFC 8200. No options are expected.
	addrs4At, addrs4Len, addrs6At, addrs6Len = 12, 8, 8, 32
	// The length of a UDP header, and the offsets of its length and checksum (RFC 768).
	udpLen, udpLenAt, udpSumAt = 8, 4, 6
)

// header is the position of an IP header in a frame.
type header struct {
	at   int
	ipv6 bool
}

// udp is the offset of the transport header.
func (h header) udp() int {
	if h.ipv6 {
		return h.at + addrs6Len
	}
	return h.at + addrs4Len
}

// protocol is the header's protocol number; 0 if the frame ends before it.
func (h header) protocol(frame []byte) byte {
	at := h.at - 3
	if h.ipv6 {
		at = h.at - 2
	}
	if at < 0 || len(frame) < h.udp() {
		return 0
	}
	return frame[at]
}

// packet is a packet of the path in a frame: inner has the ends' addresses, and outer is the frame's first IP header,
// which is the same without a tunnel.
type packet struct {
	capture.Frame
	inner, outer header
}

// packet finds a packet of the path in a frame, inside a tunnel if the path is tunnelled.
func (l *packetCounter) packet(f capture.Frame, from, to netip.Addr) (packet, bool) {
	i := bytes.Index(f.Data, slices.Concat(from.AsSlice(), to.AsSlice()))
	if i < etherLen || (i > deepestOuter) != l.delivery.tunnelled {
		return packet{}, false
	}
	p := packet{Frame: f, inner: header{i, from.Is6()}, outer: outerHeader(f.Data)}
	portAt := p.inner.udp() + 2
	return p, len(f.Data) >= portAt+2 && p.inner.protocol(f.Data) == unix.IPPROTO_UDP &&
		binary.BigEndian.Uint16(f.Data[portAt:]) == pure.Port
}

// outerHeader is a frame's first IP header.
func outerHeader(frame []byte) header {
	at, kind := etherLen, binary.BigEndian.Uint16(frame[typeAt:])
	for (kind == unix.ETH_P_8021Q || kind == unix.ETH_P_8021AD) && len(frame) > at+tagLen {
		at, kind = at+tagLen, binary.BigEndian.Uint16(frame[at+tagLen-2:])
	}
	if kind == unix.ETH_P_IPV6 {
		return header{at + addrs6At, true}
	}
	return header{at + addrs4At, false}
}

// outerSource is the source address of a frame's first header.
func (p packet) outerSource() netip.Addr {
	a, _ := netip.AddrFromSlice(p.Data[p.outer.at : p.outer.at+(p.outer.udp()-p.outer.at)/2])
	return a
}

// sum says whether the packet's UDP checksums are right, its own and the tunnel's; empty: it has none, or that is
// unknown, as of packets that were not captured whole.
func (p packet) sum() api.Checksums {
	if p.Unsummed {
		return api.ChecksumsOffloaded
	}
	inner, outer := checksum(p.Data, p.inner), api.Checksums("")
	if p.outer != p.inner {
		outer = checksum(p.Data, p.outer)
	}
	if outer == api.ChecksumsWrong {
		return outer
	}
	return inner
}

// checksum checks a UDP checksum (RFC 768, RFC 8200 section 8.1).
func checksum(frame []byte, h header) api.Checksums {
	at := h.udp()
	if h.protocol(frame) != unix.IPPROTO_UDP || len(frame) < at+udpLen {
		return ""
	}
	length := int(binary.BigEndian.Uint16(frame[at+udpLenAt:]))
	if length < udpLen || len(frame) < at+length || binary.BigEndian.Uint16(frame[at+udpSumAt:]) == 0 {
		return ""
	}
	sum := uint32(unix.IPPROTO_UDP + length)
	for i := h.at; i < at+length; i += 2 { // the addresses are directly before it
		sum += uint32(frame[i]) << 8
		if i+1 < at+length {
			sum += uint32(frame[i+1])
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	if sum != 0xffff {
		return api.ChecksumsWrong
	}
	return api.ChecksumsRight
}

// sums counts packets by their checksums.
type sums struct{ right, wrong, offloaded int }

func (s *sums) add(p packet) {
	switch p.sum() {
	case api.ChecksumsRight:
		s.right++
	case api.ChecksumsWrong:
		s.wrong++
	case api.ChecksumsOffloaded:
		s.offloaded++
	}
}

func (s sums) plus(t sums) sums {
	return sums{s.right + t.right, s.wrong + t.wrong, s.offloaded + t.offloaded}
}

// all is the state that all packets have in common; empty: none.
func (s sums) all() api.Checksums {
	switch n := s.right + s.wrong + s.offloaded; {
	case n == 0:
		return ""
	case s.right == n:
		return api.ChecksumsRight
	case s.wrong == n:
		return api.ChecksumsWrong
	case s.offloaded == n:
		return api.ChecksumsOffloaded
	}
	return ""
}
