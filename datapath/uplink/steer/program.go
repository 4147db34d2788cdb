package steer

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// hook is where a program is attached.
type hook struct {
	name string
	// port: at the port, else at the NIC. egress: outgoing frames, else incoming.
	port, egress bool
}

// hooks returns them in attach order: a frame that is handed on must find the next program.
func hooks() []hook {
	return []hook{{"port-ingress", true, false}, {"nic-egress", false, true}, {"nic-ingress", false, false}}
}

func (h hook) attachType() ebpf.AttachType {
	if h.egress {
		return ebpf.AttachTCXEgress
	}
	return ebpf.AttachTCXIngress
}

// Offsets in struct __sk_buff (linux/bpf.h).
const (
	skbLen         = 0
	skbPacketType  = 4
	skbVLANPresent = 20
	skbVLANTCI     = 24
	skbVLANProto   = 28
)

// packetHost is PACKET_HOST of packet(7).
const packetHost = 0

// Return values of programs: TCX_NEXT is TC_ACT_UNSPEC, TCX_DROP is TC_ACT_SHOT (linux/bpf.h, linux/pkt_cls.h). With
// the flag BPF_F_INGRESS a device receives a frame; without it the frame is sent.
const (
	next, drop       = -1, 2
	transmit, ingest = 0, 1
)

// On the stack, from its end: the frame's first 16 bytes (destination, source, type, tag), a key of macs, an index.
const (
	dstAt, srcAt, typeAt, tagAt = -16, -10, -4, -2
	keyAt, keyVLANAt            = -24, -18
	indexAt                     = -28
	headerLen                   = 16
)

const (
	ethVLAN  = 0x8100 // IEEE 802.1Q
	ethSVLAN = 0x88a8 // IEEE 802.1ad
	vidMask  = 0x0fff
)

// Registers: the frame's context and its VLAN.
const frame, vlan = asm.R6, asm.R7

// plan is the input of the programs: interface indexes and the file descriptors of maps.
type plan struct {
	nic, port   int
	macs, count int
}

func (p plan) spec(h hook) *ebpf.ProgramSpec {
	return &ebpf.ProgramSpec{Name: p.name(h), Type: ebpf.SchedCLS, AttachType: h.attachType(),
		Instructions: p.code(h), License: "Apache-2.0"}
}

func (p plan) code(h hook) asm.Instructions {
	c := code{plan: p}
	if h.port {
		c.fromPods()
	} else {
		c.fromOthers(h.egress)
	}
	return c.all
}

// programPrefix is the prefix of program names.
const programPrefix = "fl_"

// name distinguishes programs: it has a digest of all that the program does. The kernel keeps 15 characters.
func (p plan) name(h hook) string {
	p.macs, p.count = 0, 0 // these file descriptors are the process's
	sum := sha256.Sum256([]byte(fmt.Sprint(h, p.code(h))))
	return programPrefix + hex.EncodeToString(sum[:6])
}

// code is a program being built.
type code struct {
	plan
	all asm.Instructions
}

func (c *code) add(ins ...asm.Instruction) { c.all = append(c.all, ins...) }

// fromOthers is the program of both hooks of the NIC.
func (c *code) fromOthers(egress bool) {
	from, others := FromUnderlay, ToHost
	if egress {
		from, others = FromHost, ToUnderlay
	}
	c.add(asm.Mov.Reg(frame, asm.R1))
	if !egress { // most frames are for the NIC's own address, not a pod's: the kernel has compared it
		c.add(asm.LoadMem(asm.R1, frame, skbPacketType, asm.Word), asm.JEq.Imm(asm.R1, packetHost, "others"))
	}
	c.read("others")
	c.isGroup("group")
	c.lookup(dstAt)
	c.add(asm.JEq.Imm(asm.R0, 0, "others"))
	c.lookup(srcAt)
	c.add(asm.JNE.Imm(asm.R0, 0, "others"))
	c.countFrame(from, ToPods)
	c.redirect(c.port, transmit)

	c.label("group")
	c.isReserved("others")
	c.broadcast()
	c.lookupKey()
	c.add(asm.JEq.Imm(asm.R0, 0, "others"))
	c.lookup(srcAt)
	c.add(asm.JNE.Imm(asm.R0, 0, "others"))
	c.countFrame(from, ToBoth)
	c.clone(c.port, transmit)
	c.end(next)

	c.label("others")
	c.countFrame(from, others)
	c.end(next)
}

// fromPods is the program of the port.
func (c *code) fromPods() {
	c.add(asm.Mov.Reg(frame, asm.R1))
	c.read("unsupported")
	c.lookup(srcAt)
	c.add(asm.JEq.Imm(asm.R0, 0, "unsupported"))
	c.isGroup("group")
	c.add(asm.Mov.Imm(vlan, anyVLAN))
	c.lookup(dstAt)
	c.add(asm.JNE.Imm(asm.R0, 0, "host"))
	c.countFrame(FromPods, ToUnderlay)
	c.redirect(c.nic, transmit)

	c.label("host")
	c.countFrame(FromPods, ToHost)
	c.redirect(c.nic, ingest)

	c.label("group")
	c.countFrame(FromPods, ToBoth)
	c.clone(c.nic, ingest)
	c.redirect(c.nic, transmit)

	c.label("unsupported")
	c.countFrame(FromPods, Dropped)
	c.end(drop)
}

// label names the next instruction.
func (c *code) label(name string) { c.add(asm.Mov.Imm(asm.R0, 0).WithSymbol(name)) }

// read copies the beginning of the frame to the stack and its VLAN to the register: 0 if it has none. For frames that
// are too short, or have another kind of tag, it jumps to the label.
func (c *code) read(other string) {
	c.add(asm.Mov.Reg(asm.R1, frame),
		asm.Mov.Imm(asm.R2, 0),
		asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, dstAt),
		asm.Mov.Imm(asm.R4, headerLen),
		asm.FnSkbLoadBytes.Call(),
		asm.JNE.Imm(asm.R0, 0, other),
		// The kernel strips the tag from received frames, and inserts it when the NIC sends.
		asm.LoadMem(asm.R1, frame, skbVLANPresent, asm.Word),
		asm.JEq.Imm(asm.R1, 0, "inside"),
		asm.LoadMem(asm.R1, frame, skbVLANProto, asm.Word),
		asm.HostTo(asm.BE, asm.R1, asm.Half),
		asm.JNE.Imm(asm.R1, ethVLAN, other),
		asm.LoadMem(vlan, frame, skbVLANTCI, asm.Word),
		asm.And.Imm(vlan, vidMask),
		asm.Ja.Label("read"),
		// Programs that write to a packet(7) socket insert it themselves.
		asm.LoadMem(asm.R1, asm.RFP, typeAt, asm.Half).WithSymbol("inside"),
		asm.HostTo(asm.BE, asm.R1, asm.Half),
		asm.Mov.Imm(vlan, 0),
		asm.JEq.Imm(asm.R1, ethSVLAN, other),
		asm.JNE.Imm(asm.R1, ethVLAN, "read"),
		asm.LoadMem(vlan, asm.RFP, tagAt, asm.Half),
		asm.HostTo(asm.BE, vlan, asm.Half),
		asm.And.Imm(vlan, vidMask))
	c.label("read")
}

// isGroup jumps if the destination is a group address: the lowest bit of its first byte is set.
func (c *code) isGroup(label string) {
	c.add(asm.LoadMem(asm.R1, asm.RFP, dstAt, asm.Byte), asm.And.Imm(asm.R1, 1), asm.JNE.Imm(asm.R1, 0, label))
}

// isReserved jumps if it is 01:80:c2:00:00:xx (IEEE 802.1Q, 8.6.3).
func (c *code) isReserved(label string) {
	c.add(asm.LoadMem(asm.R1, asm.RFP, dstAt, asm.Word),
		asm.HostTo(asm.BE, asm.R1, asm.Word),
		asm.JNE.Imm(asm.R1, 0x0180c200, "not reserved"),
		asm.LoadMem(asm.R1, asm.RFP, dstAt+4, asm.Byte),
		asm.JEq.Imm(asm.R1, 0, label))
	c.label("not reserved")
}

// lookup looks up an address of the header, in the VLAN, in macs; the result is in R0, 0 for none.
func (c *code) lookup(at int16) {
	for i := int16(0); i < 6; i += 2 { // the source is aligned to no more
		c.add(asm.LoadMem(asm.R1, asm.RFP, at+i, asm.Half), asm.StoreMem(asm.RFP, keyAt+i, asm.R1, asm.Half))
	}
	c.lookupKey()
}

// broadcast builds the VLAN's broadcast key.
func (c *code) broadcast() {
	c.add(asm.Mov.Imm(asm.R1, -1), asm.StoreMem(asm.RFP, keyAt, asm.R1, asm.Word),
		asm.StoreMem(asm.RFP, keyAt+4, asm.R1, asm.Half))
}

func (c *code) lookupKey() {
	c.add(asm.StoreMem(asm.RFP, keyVLANAt, vlan, asm.Half), asm.LoadMapPtr(asm.R1, c.macs),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, keyAt), asm.FnMapLookupElem.Call())
}

// countFrame increments the counter of the frame. Counters are per CPU, and nothing else on the CPU can interrupt.
func (c *code) countFrame(from From, to To) {
	i := indexOf(from, to)
	skip := "tallied " + from.String() + to.String()
	c.add(asm.Mov.Imm(asm.R1, int32(i)), asm.StoreMem(asm.RFP, indexAt, asm.R1, asm.Word),
		asm.LoadMapPtr(asm.R1, c.count), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, indexAt),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, skip),
		asm.LoadMem(asm.R1, asm.R0, 0, asm.DWord), asm.Add.Imm(asm.R1, 1), asm.StoreMem(asm.R0, 0, asm.R1, asm.DWord),
		asm.LoadMem(asm.R2, frame, skbLen, asm.Word),
		asm.LoadMem(asm.R1, asm.R0, 8, asm.DWord), asm.Add.Reg(asm.R1, asm.R2),
		asm.StoreMem(asm.R0, 8, asm.R1, asm.DWord))
	c.label(skip)
}

func (c *code) redirect(ifindex int, how int32) {
	c.add(asm.Mov.Imm(asm.R1, index32(ifindex)), asm.Mov.Imm(asm.R2, how), asm.FnRedirect.Call(), asm.Return())
}

// clone hands on a copy. If that fails because the device is gone, the frame itself continues nevertheless.
func (c *code) clone(ifindex int, how int32) {
	c.add(asm.Mov.Reg(asm.R1, frame), asm.Mov.Imm(asm.R2, index32(ifindex)), asm.Mov.Imm(asm.R3, how),
		asm.FnCloneRedirect.Call())
}

func (c *code) end(verdict int32) { c.add(asm.Mov.Imm(asm.R0, verdict), asm.Return()) }

// index32: the kernel's interface indexes have 31 bits.
func index32(ifindex int) int32 { return int32(min(max(ifindex, 0), math.MaxInt32)) }

// key returns a key of macs: an address, and a VLAN in native byte order.
func key(e Entry) (k [8]byte) {
	copy(k[:], e.MAC[:])
	binary.NativeEndian.PutUint16(k[6:], e.VLAN)
	return k
}
