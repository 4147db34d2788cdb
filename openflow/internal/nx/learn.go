package nx

import (
	"bytes"
	"encoding/binary"
)

const (
	subtypeLearn = 16
	ipv4, ipv6   = 0x0800, 0x86dd
	tcp, udp     = 6, 17

	setField = 25 // type of an action
	reg4     = 0x0001_0804

	// Parts of a learned flow: what it writes to a field, and what it matches.
	learnValue = 1 << 13
	learnLoad  = 1 << 11
)

// Learn is the action learn, with which a packet adds a flow: packets from the same source address to the same
// destination address and port, with Given in reg4, get Value there.
type Learn struct {
	Table    uint8
	Priority uint16
	Cookie   uint64
	// Idle is how many seconds the flow stays without a packet.
	Idle     uint16
	IPv6     bool
	Protocol uint8 // IANA's number: TCP or UDP
	Given    uint32
	Value    uint32
}

// Headers of fields.
func (l Learn) fields() (src, dst, port uint32, bits uint16) {
	src, dst, port, bits = 0x0000_0e04, 0x0000_1004, 0x0000_1402, 32
	if l.IPv6 {
		src, dst, bits = 0x0001_2610, 0x0001_2810, 128
	}
	if l.Protocol == udp {
		port = 0x0000_1802
	}
	return src, dst, port, bits
}

// Append appends the action with its header.
func (l Learn) Append(b []byte) []byte {
	start := len(b)
	b = binary.BigEndian.AppendUint16(header(b, subtypeLearn), l.Idle)
	b = binary.BigEndian.AppendUint16(b, 0)
	b = binary.BigEndian.AppendUint16(b, l.Priority)
	b = binary.BigEndian.AppendUint64(b, l.Cookie)
	b = append(b, 0, 0, l.Table, 0, 0, 0, 0, 0)
	value := func(bits uint16, v []byte, field uint32) {
		b = append(binary.BigEndian.AppendUint16(b, learnValue|bits), v...)
		b = append(binary.BigEndian.AppendUint32(b, field), 0, 0)
	}
	same := func(bits uint16, field uint32) {
		b = append(binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(b, bits), field), 0, 0)
		b = append(binary.BigEndian.AppendUint32(b, field), 0, 0)
	}
	kind := uint16(ipv4)
	if l.IPv6 {
		kind = ipv6
	}
	src, dst, port, bits := l.fields()
	value(16, binary.BigEndian.AppendUint16(nil, kind), 0x0000_0602)
	value(8, []byte{0, l.Protocol}, 0x0000_0c01)
	same(bits, src)
	same(bits, dst)
	same(16, port)
	value(32, binary.BigEndian.AppendUint32(nil, l.Given), reg4)
	value(learnLoad|32, binary.BigEndian.AppendUint32(nil, l.Value), reg4)
	return finish(b, start)
}

// ReadLearn reads what follows type and length of an action; ok is false if it is not a Learn.
func ReadLearn(body []byte) (l Learn, ok bool) {
	if len(body) != 116 {
		return l, false
	}
	l = Learn{Idle: binary.BigEndian.Uint16(body[6:]), Priority: binary.BigEndian.Uint16(body[10:]),
		Cookie: binary.BigEndian.Uint64(body[12:]), Table: body[22], Protocol: body[41],
		IPv6: binary.BigEndian.Uint16(body[30:]) == ipv6, Given: binary.BigEndian.Uint32(body[92:]),
		Value: binary.BigEndian.Uint32(body[104:])}
	var again [120]byte
	return l, bytes.Equal(l.Append(again[:0])[4:], body)
}
