// Package renewal makes the userspace datapath look up all packets again after each change of the tables.
//
// After a change Open vSwitch compares its cached megaflows with the tables, and modifies those that differ. Megaflows
// may overlap as long as they have the same actions. But the userspace datapath of Open vSwitch 3.1.0 looks up the
// megaflow to modify by a packet, not by its ID: of two that overlap it may modify the wrong one, and the other stays
// unchanged for as long as packets arrive. Measured: in 11 of 16 series of a dozen policy changes, connections that
// were allowed again stayed dropped; with 3.5.0 in none of 8.
//
// A megaflow that must match more of a packet than before is deleted, by its ID, instead of modified. So the first
// table, and each in which a packet continues after conntrack, has a flow that matches a bit of the packet's mark, and
// with each change another bit. No packet has a mark in the userspace datapath, so the flow matches none.
//
// Versions for which [Needed] is false get none of these flows.
//
// Not covered are megaflows that depend on no table: those of a group that selects by the datapath's hash, and of other
// bridges. They overlap only when a Service has lost half of its endpoints, or a MAC address has moved.
package renewal

import (
	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/openflow/clusterip"
	"github.com/fairlead-cni/fairlead/openflow/policing"
)

// bits is the number of generations before flows repeat.
const bits = 16

// Flows returns the flows of a generation, for [openflow.Switch.RenewWith].
func Flows(generation int) (out []openflow.Flow) {
	bit := uint16(1) << (generation % bits)
	for _, table := range entries() {
		out = append(out, openflow.Flow{Table: table, Priority: 0xffff, Kind: openflow.KindRenewal,
			Match: openflow.Match{PktMark: openflow.Bits{Value: bit, Mask: bit}}})
	}
	return out
}

// entries returns the tables in which the lookup of a packet begins, or continues after conntrack.
func entries() []uint8 {
	return []uint8{openflow.TableClassify, openflow.TableService, openflow.TableForward, clusterip.TableCommit,
		clusterip.TableHairpinAnswer, clusterip.TableHairpin, policing.Egress.State(), policing.Ingress.State()}
}
