package openflow

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/openflow/internal/nx"
)

// Action is one action of a flow. Actions are values comparable with ==; String returns them as ovs-ofctl(8) prints
// them. The table actionTypes decodes the switch's.
type Action interface {
	String() string
	ofnet() ofAction // nil for one that is not sent as an action
}

// Goto continues in another table, with a higher number. It is the last action of a flow.
type Goto uint8

// Output sends the packet out of an OpenFlow port. Output to the ingress port does nothing; use OutputInPort.
type Output uint32

// OutputInPort is OFPP_IN_PORT, and OutputController OFPP_CONTROLLER: the packet's headers go to connected listeners.
const OutputInPort, OutputController Output = 0xfffffff8, 0xfffffffd

// reserved are the ports that ovs-ofctl prints by name.
var reserved = map[Output]string{OutputInPort: "IN_PORT", OutputController: "CONTROLLER:128"}

// DecTTL decrements TTL or hop limit; a packet with at most 1 is dropped.
type DecTTL struct{}

// PopVLAN removes the outer VLAN tag, PushVLAN adds one with this TPID; SetVLAN then sets its ID.
type (
	PopVLAN  struct{}
	PushVLAN uint16
)

// Resubmit looks the packet, as modified, up in a table again.
type Resubmit uint8

// CheckLarger adds TooLarge to reg1, the segment, if a frame has more bytes, including its Ethernet header.
type CheckLarger uint16

// ToGroup hands the packet to one of a group's buckets.
type ToGroup uint32

// Conntrack sends the packet through conntrack; NAT says how its addresses are translated.
type (
	Conntrack nx.Conntrack
	NAT       = nx.NAT
)

// Learn adds a flow that sets reg4 to the endpoint for packets from one address to one address and port.
type Learn nx.Learn

// The NAT of an existing connection or of a new one; and a Conntrack without a further table lookup.
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

// MoveField copies one field of a packet to another of the same width.
type MoveField struct{ from, to *field }

// unknownAction stands for an action in a dump that no flow of Fairlead's has.
type unknownAction string

// setField writes the field of that name (ovs-fields(7)).
func setField(name string, v value) SetField { return SetField{mustField(name), v} }

// SetSource sets reg0.
func SetSource(s Source) SetField { return setField("reg0", numberValue(uint32(s))) }

// SetSegment sets reg1.
func SetSegment(s Segment) SetField { return setField("reg1", numberValue(uint32(s))) }

// SetStage sets reg2.
func SetStage(s Stage) SetField { return setField("reg2", numberValue(uint32(s)-1)) }

// SetZone sets reg3: the zone in which a Service's destination is translated, or of a pod's connections.
func SetZone(zone uint16) SetField { return setField("reg3", numberValue(uint32(zone))) }

// RegisterZone is the number of the register that SetZone sets.
const RegisterZone = 3

// SetEndpoint sets reg4: what a Learn matches there.
func SetEndpoint(e uint32) SetField { return setField("reg4", numberValue(e)) }

// SetJudged sets reg9: the pod for which policies judge a packet.
func SetJudged(pod uint32) SetField { return setField("reg9", numberValue(pod)) }

// SetClass sets reg5: the class of the pod's peer.
func SetClass(c uint32) SetField { return setField("reg5", numberValue(c)) }

// SetGroup sets reg6: the pod's group.
func SetGroup(g uint32) SetField { return setField("reg6", numberValue(g)) }

// SetEgress sets reg7.
func SetEgress(j Judgement) SetField { return setField("reg7", numberValue(uint32(j)-1)) }

// SetIngress sets reg8.
func SetIngress(j Judgement) SetField { return setField("reg8", numberValue(uint32(j)-1)) }

// SetEthSrc writes the Ethernet source address.
func SetEthSrc(m api.MAC) SetField { return setField("eth_src", macValue(m)) }

// SetEthDst writes the Ethernet destination address.
func SetEthDst(m api.MAC) SetField { return setField("eth_dst", macValue(m)) }

// SetTunDst sets the peer's endpoint for a packet to the tunnel port.
func SetTunDst(a netip.Addr) SetField {
	name := "tun_ipv6_dst"
	if a.Is4() {
		name = "tun_dst"
	}
	return setField(name, addrValue(a))
}

// SetARPOp writes ARP's operation.
func SetARPOp(op uint16) SetField { return setField("arp_op", numberValue(uint32(op))) }

// SetARPSha writes ARP's sender hardware address.
func SetARPSha(m api.MAC) SetField { return setField("arp_sha", macValue(m)) }

// SetARPSpa writes ARP's sender IPv4 address.
func SetARPSpa(a netip.Addr) SetField { return setField("arp_spa", addrValue(a)) }

// SetVLAN sets the VLAN ID of a tagged frame.
func SetVLAN(id uint16) SetField { return setField("vlan_vid", numberValue(uint32(VLANPresent|id))) }

// Move copies a field to another, by name (ovs-fields(7)).
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
