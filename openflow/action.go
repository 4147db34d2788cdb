package openflow

import (
	"fmt"
	"net/netip"

	"github.com/fairlead-cni/fairlead/api"
)

// Action is one thing that a flow does to a packet. Actions are values that
// can be compared with ==; String returns them as ovs-ofctl(8) prints them.
type Action interface {
	String() string
}

// Goto continues in another table, with a higher number. It is the last action
// of a flow.
type Goto uint8

// Output sends the packet out of an OpenFlow port. Sending it back to the port
// that it came from does nothing.
type Output uint32

// SetSource fills in reg0, SetSegment reg1.
type (
	SetSource  Source
	SetSegment Segment
)

// SetEthSrc and SetEthDst write an Ethernet address.
type (
	SetEthSrc api.MAC
	SetEthDst api.MAC
)

// SetTunDst says which peer's endpoint a packet for the tunnel port goes to.
type SetTunDst struct{ netip.Addr }

// DecTTL decrements TTL or hop limit; a packet that has no more than 1 is
// dropped.
type DecTTL struct{}

// PopVLAN removes the outer VLAN tag, PushVLAN adds one (TPID 0x8100), whose ID
// SetVLAN then sets.
type (
	PopVLAN  struct{}
	PushVLAN struct{}
	SetVLAN  uint16
)

// OutputInPort sends the packet back to the port that it came from, which Output does
// not.
type OutputInPort struct{}

// The fields of an ARP packet that its answer has otherwise.
type (
	SetARPOp  uint16
	SetARPSha api.MAC
	SetARPSpa struct{ netip.Addr }
)

// MoveField copies one field of a packet to another.
type MoveField uint8

const (
	EthSrcToDst MoveField = iota + 1
	ARPShaToTha
	ARPSpaToTpa
)

// fields are what ovs-ofctl calls the action, the fields' numbers and
// their width in bits.
func (a MoveField) fields() (name string, from, to uint32, bits uint16) {
	switch a {
	case EthSrcToDst:
		return "move:NXM_OF_ETH_SRC[]->NXM_OF_ETH_DST[]", oxmEthSrc, oxmEthDst, 48
	case ARPShaToTha:
		return "move:NXM_NX_ARP_SHA[]->NXM_NX_ARP_THA[]", oxmARPSha, oxmARPTha, 48
	default:
		return "move:NXM_OF_ARP_SPA[]->NXM_OF_ARP_TPA[]", oxmARPSpa, oxmARPTpa, 32
	}
}

// unknownAction stands for an action, in a dump, that no flow of ours has.
type unknownAction string

func (a Goto) String() string      { return fmt.Sprintf("goto_table:%d", uint8(a)) }
func (a Output) String() string    { return fmt.Sprintf("output:%d", uint32(a)) }
func (a SetSource) String() string { return fmt.Sprintf("set_field:%#x->reg0", uint32(a)) }
func (a SetEthSrc) String() string { return fmt.Sprintf("set_field:%s->eth_src", api.MAC(a)) }
func (a SetEthDst) String() string { return fmt.Sprintf("set_field:%s->eth_dst", api.MAC(a)) }
func (a SetTunDst) String() string {
	return fmt.Sprintf("set_field:%s->%s", a.Addr, tunName(a.Addr, "dst"))
}
func (DecTTL) String() string { return "dec_ttl" }

func (a SetSegment) String() string    { return fmt.Sprintf("set_field:%#x->reg1", uint32(a)) }
func (PopVLAN) String() string         { return "pop_vlan" }
func (PushVLAN) String() string        { return "push_vlan:0x8100" }
func (a SetVLAN) String() string       { return fmt.Sprintf("set_field:%d->vlan_vid", vlanPresent|uint16(a)) }
func (OutputInPort) String() string    { return "IN_PORT" }
func (a SetARPOp) String() string      { return fmt.Sprintf("set_field:%d->arp_op", uint16(a)) }
func (a SetARPSha) String() string     { return fmt.Sprintf("set_field:%s->arp_sha", api.MAC(a)) }
func (a SetARPSpa) String() string     { return fmt.Sprintf("set_field:%s->arp_spa", a.Addr) }
func (a MoveField) String() string     { name, _, _, _ := a.fields(); return name }
func (a unknownAction) String() string { return string(a) }
