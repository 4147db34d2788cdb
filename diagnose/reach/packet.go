package reach

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"net/netip"
	"time"
)

// Port is the UDP port of every end. The kernel chooses the source ports.
const Port = 6784

// Size is the length of a packet's payload in bytes, except for full-size packets.
const Size = 64

const version = 2

// Flags.
const (
	flagFull = 1 << iota
	flagLeaving
	flagInitiates
	flagNarrow
	flagLossy
)

// Packet is what one end sends to another. Times have a resolution of a millisecond.
type Packet struct {
	// From and To are the nodes, by NameHash: a node ignores a packet for another node that reaches it.
	From, To uint64
	// Seq counts the packets from this end to that one since the sender's agent started, from 1.
	Seq uint32
	// Uptime is for how long the sender has sent to this end, without a pause and without a restart of its Open vSwitch.
	Uptime time.Duration
	// Interval is how often the sender sends to this end.
	Interval time.Duration
	// MTU is the MTU of the sender's pods, in bytes.
	MTU uint16
	// Full: the packet is as long as the MTU of both ends allows.
	Full bool
	// Leaving: the sender stops.
	Leaving bool
	// Initiates: the sender sends of its own accord, not only in return. The receiver sends back as long as the
	// sender does: if each end went on because the other does, two ends that once met would never stop.
	Initiates bool
	// Trial numbers the trials that find out on which path packets are lost (Port); 0: the packet belongs to none.
	Trial uint8
	Heard Heard
	// About is a node, by NameHash, that the sender does not hear: does the receiver? 0: none. Other answers what the
	// receiver has asked.
	About uint64
	Other Other
}

// Other is how long ago the sender of a packet has heard a third node, if recently. The zero value is nothing.
type Other struct {
	Node uint64
	Age  time.Duration
}

// Heard is what the sender of a packet has received from the end that it goes to.
type Heard struct {
	// Age is how long ago the last packet arrived; negative: none did.
	Age time.Duration
	// Lost is how many of the last 32 packets did not arrive, and Narrow and Lossy what follows from that.
	Lost          uint8
	Narrow, Lossy bool
	// Bad is from how many source ports of a trial no packet arrived, while all arrived from the others.
	Bad uint8
}

// NameHash is how packets name nodes.
func NameHash(node string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(node))
	return h.Sum64()
}

// Append appends p to b, padded to size bytes, or to Size if that is more.
func (p Packet) Append(b []byte, size int) []byte {
	flags := byte(0)
	for flag, is := range map[byte]bool{flagFull: p.Full, flagLeaving: p.Leaving, flagInitiates: p.Initiates,
		flagNarrow: p.Heard.Narrow, flagLossy: p.Heard.Lossy} {
		if is {
			flags |= flag
		}
	}
	start := len(b)
	b = append(b, 'F', 'L', 'R', version, flags, p.Heard.Lost)
	b = binary.BigEndian.AppendUint16(b, p.MTU)
	b = binary.BigEndian.AppendUint64(b, p.From)
	b = binary.BigEndian.AppendUint64(b, p.To)
	b = binary.BigEndian.AppendUint32(b, p.Seq)
	for _, d := range []time.Duration{p.Uptime, p.Heard.Age, p.Interval} {
		b = binary.BigEndian.AppendUint32(b, millis(d))
	}
	b = binary.BigEndian.AppendUint64(b, p.About)
	b = binary.BigEndian.AppendUint64(b, p.Other.Node)
	b = binary.BigEndian.AppendUint32(b, millis(p.Other.Age))
	b = append(b, p.Trial, p.Heard.Bad)
	return append(b, make([]byte, max(size, Size)-(len(b)-start))...)
}

func millis(d time.Duration) uint32 {
	if d < 0 {
		return math.MaxUint32
	}
	return uint32(min(d.Milliseconds(), math.MaxUint32-1))
}

func fromMillis(n uint32) time.Duration {
	if n == math.MaxUint32 {
		return -time.Millisecond
	}
	return time.Duration(n) * time.Millisecond
}

// Parse reads a packet as Append writes it. What follows the fields is ignored.
func Parse(b []byte) (Packet, error) {
	if len(b) < Size {
		return Packet{}, fmt.Errorf("%d bytes: a packet has %d or more", len(b), Size)
	}
	if string(b[:3]) != "FLR" || b[3] != version {
		return Packet{}, fmt.Errorf("begins with %x: not a packet of this version", b[:4])
	}
	be := binary.BigEndian
	p := Packet{Full: b[4]&flagFull != 0, Leaving: b[4]&flagLeaving != 0, Initiates: b[4]&flagInitiates != 0,
		MTU: be.Uint16(b[6:]), From: be.Uint64(b[8:]), To: be.Uint64(b[16:]), Seq: be.Uint32(b[24:]),
		Uptime: fromMillis(be.Uint32(b[28:])), Interval: fromMillis(be.Uint32(b[36:])),
		Heard: Heard{Lost: b[5], Age: fromMillis(be.Uint32(b[32:])),
			Narrow: b[4]&flagNarrow != 0, Lossy: b[4]&flagLossy != 0, Bad: b[61]},
		Trial: b[60], About: be.Uint64(b[40:]), Other: Other{Node: be.Uint64(b[48:]), Age: fromMillis(be.Uint32(b[56:]))}}
	if p.Seq == 0 || p.Uptime < 0 || p.Interval <= 0 || p.Other.Age < 0 || p.Heard.Lost > window ||
		p.Heard.Bad >= trialPorts {
		return Packet{}, errors.New("a number, a time or a count of losses that no end sends")
	}
	return p, nil
}

// End is the address of the end of the node with that podCIDR: the last that a pod can have. It is invalid for a range
// of fewer than 16 addresses, which has none to spare.
func End(podCIDR netip.Prefix) netip.Prefix {
	p := podCIDR.Masked()
	if !p.IsValid() || p.Addr().BitLen()-p.Bits() < 4 {
		return netip.Prefix{}
	}
	b := p.Addr().AsSlice()
	for bit := p.Bits(); bit < len(b)*8; bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ := netip.AddrFromSlice(b)
	return netip.PrefixFrom(last.Prev(), p.Bits()) // the last IPv4 address is the broadcast address, and IPv6 has enough
}
