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

// SetSource fills in reg0.
type SetSource Source

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

// alien stands for an action, in a dump, that no flow of ours has.
type alien string

func (a Goto) String() string      { return fmt.Sprintf("goto_table:%d", uint8(a)) }
func (a Output) String() string    { return fmt.Sprintf("output:%d", uint32(a)) }
func (a SetSource) String() string { return fmt.Sprintf("set_field:%#x->reg0", uint32(a)) }
func (a SetEthSrc) String() string { return fmt.Sprintf("set_field:%s->eth_src", api.MAC(a)) }
func (a SetEthDst) String() string { return fmt.Sprintf("set_field:%s->eth_dst", api.MAC(a)) }
func (a SetTunDst) String() string {
	return fmt.Sprintf("set_field:%s->%s", a.Addr, tunName(a.Addr, "dst"))
}
func (DecTTL) String() string  { return "dec_ttl" }
func (a alien) String() string { return string(a) }
