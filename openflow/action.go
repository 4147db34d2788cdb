package openflow

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/openflow/internal/nx"
)

// Action is one thing that a flow does to a packet. Actions are values that can be compared with ==; String returns
// them as ovs-ofctl(8) prints them. The switch's are read by the table actionTypes.
type Action interface {
	String() string
	ofnet() ofAction // nil for one that is not sent as an action
}

// Goto continues in another table, with a higher number. It is the last action of a flow.
type Goto uint8

// Output sends the packet out of an OpenFlow port. Sending it back to the port
// that it came from does nothing; OutputInPort does that.
type Output uint32

// OutputInPort is OFPP_IN_PORT, and OutputController OFPP_CONTROLLER: the packet's headers go to who listens.
const OutputInPort, OutputController Output = 0xfffffff8, 0xfffffffd

// reserved are the ports that ovs-ofctl has words for.
var reserved = map[Output]string{OutputInPort: "IN_PORT", OutputController: "CONTROLLER:128"}

// DecTTL decrements TTL or hop limit; a packet that has no more than 1 is dropped.
type DecTTL struct{}

// PopVLAN removes the outer VLAN tag, PushVLAN adds one with this TPID, whose ID SetVLAN then sets.
type (
	PopVLAN  struct{}
	PushVLAN uint16
)

// Resubmit looks the packet up in a table once more, changed as it is.
type Resubmit uint8

// CheckLarger adds TooLarge to reg1, the segment, if a frame has more bytes, its Ethernet header among them.
type CheckLarger uint16

// ToGroup hands the packet to one of a group's buckets.
type ToGroup uint32

// Conntrack sends the packet through conntrack; NAT says what becomes of its addresses.
type (
	Conntrack nx.Conntrack
	NAT       = nx.NAT
)

// Learn adds a flow that has packets from one address to one address and port have their endpoint in reg4.
type Learn nx.Learn

// The NAT of a connection that has an entry, or of a new one; and a Conntrack that does not look the packet up again.
const (
	NATApply = nx.NATApply
	NATSrc   = nx.NATSrc
	NATDst   = nx.NATDst
	NoTable  = nx.NoTable
)

// Conjunction makes the flow part of one dimension, 1 to Of, of a conjunction (ovs-fields(7)).
type Conjunction struct {
	ID         uint32
	Number, Of uint8
}

// SetField writes a field.
type SetField struct {
	field *field
	value value
}

// MoveField copies one field of a packet to another, of the same width.
type MoveField struct{ from, to *field }

// unknownAction stands for an action, in a dump, that no flow of ours has.
type unknownAction string

// setField writes the field of that name in ovs-fields(7).
func setField(name string, v value) SetField { return SetField{mustField(name), v} }

// SetSource fills in reg0.
func SetSource(s Source) SetField { return setField("reg0", numberValue(uint32(s))) }

// SetSegment fills in reg1.
func SetSegment(s Segment) SetField { return setField("reg1", numberValue(uint32(s))) }

// SetStage fills in reg2.
func SetStage(s Stage) SetField { return setField("reg2", numberValue(uint32(s)-1)) }

// SetZone fills in reg3: the zone that a Service's destination is translated in, or that a pod's connections are in.
func SetZone(zone uint16) SetField { return setField("reg3", numberValue(uint32(zone))) }

// RegisterZone is the number of the register that SetZone fills in.
const RegisterZone = 3

// SetEndpoint fills in reg4: what a Learn looks for there.
func SetEndpoint(e uint32) SetField { return setField("reg4", numberValue(e)) }

// SetJudged fills in reg9: the pod that a packet is judged for by policies.
func SetJudged(pod uint32) SetField { return setField("reg9", numberValue(pod)) }

// SetClass fills in reg5: the class of the pod's peer.
func SetClass(c uint32) SetField { return setField("reg5", numberValue(c)) }

// SetGroup fills in reg6: the pod's group.
func SetGroup(g uint32) SetField { return setField("reg6", numberValue(g)) }

// SetEgress fills in reg7.
func SetEgress(j Judgement) SetField { return setField("reg7", numberValue(uint32(j)-1)) }

// SetIngress fills in reg8.
func SetIngress(j Judgement) SetField { return setField("reg8", numberValue(uint32(j)-1)) }

// SetEthSrc writes the Ethernet source address.
func SetEthSrc(m api.MAC) SetField { return setField("eth_src", macValue(m)) }

// SetEthDst writes the Ethernet destination address.
func SetEthDst(m api.MAC) SetField { return setField("eth_dst", macValue(m)) }

// SetTunDst says which peer's endpoint a packet for the tunnel port goes to.
func SetTunDst(a netip.Addr) SetField {
	name := "tun_ipv6_dst"
	if a.Is4() {
		name = "tun_dst"
	}
	return setField(name, addrValue(a))
}

// SetARPOp writes ARP's operation.
func SetARPOp(op uint16) SetField { return setField("arp_op", numberValue(uint32(op))) }

// SetARPSha writes the Ethernet address of ARP\'s sender.
func SetARPSha(m api.MAC) SetField { return setField("arp_sha", macValue(m)) }

// SetARPSpa writes the IPv4 address of ARP\'s sender.
func SetARPSpa(a netip.Addr) SetField { return setField("arp_spa", addrValue(a)) }

// SetVLAN sets the VLAN ID of a tagged frame.
func SetVLAN(id uint16) SetField { return setField("vlan_vid", numberValue(uint32(VLANPresent|id))) }

// Move copies a field to another, by their names in ovs-fields(7).
func Move(from, to string) MoveField { return MoveField{mustField(from), mustField(to)} }

func (a Goto) String() string     { return "goto_table:" + strconv.Itoa(int(a)) }
func (a Output) String() string   { return cmp.Or(reserved[a], "output:"+strconv.Itoa(int(a))) }
func (DecTTL) String() string     { return "dec_ttl" }
func (PopVLAN) String() string    { return "pop_vlan" }
func (a Resubmit) String() string { return fmt.Sprintf("resubmit(,%d)", uint8(a)) }
func (a CheckLarger) String() string {
	return fmt.Sprintf("check_pkt_larger(%d)->NXM_NX_REG1[%d]", uint16(a), nx.LargerBit)
}
func (a ToGroup) String() string { return fmt.Sprintf("group:%d", uint32(a)) }
func (a Conjunction) String() string {
	return fmt.Sprintf("conjunction(%d,%d/%d)", a.ID, a.Number, a.Of)
}
func (a PushVLAN) String() string { return fmt.Sprintf("push_vlan:%#x", uint16(a)) }

func (a SetField) String() string {
	b := a.field.in.text([]byte("set_field:"), oxm{a.field, bits{a.value, allBits}})
	return string(append(append(b, "->"...), a.field.name...))
}

func (a MoveField) String() string     { return "move:" + a.from.move + "[]->" + a.to.move + "[]" }
func (a unknownAction) String() string { return string(a) }

func (a Conntrack) String() string { return nx.Conntrack(a).String() }
func (a Learn) String() string     { return nx.Learn(a).String() }
