// Package renewal has the userspace datapath look up all packets again after each change of the tables.
//
// What Open vSwitch cached of the tables, its megaflows, it compares with them after a change, and modifies what
// differs. Megaflows may overlap as long as they do the same. The userspace datapath of Open vSwitch 3.1.0 finds the
// megaflow that it is to modify by a packet, though, and not by its ID: of two that overlap it may modify the other
// one, and what it should have modified stays as it was for as long as packets come. Seen: in 11 of 16 series of a
// dozen changes of policies, connections that were allowed again stayed dropped; with 3.5.0 in none of 8.
//
// A megaflow that has to look at more of a packet than before is deleted, by its ID, and not modified. So the first
// table, and each in which a packet goes on after conntrack, has a flow that matches a bit of the packet's mark, and
// with each change another bit. No packet has a mark in the userspace datapath, so the flow takes none.
//
// Versions for which [Needed] is false have none of these flows.
//
// Not covered are megaflows that look at no table: those of a group that chooses by the datapath's hash, and of other
// bridges. They overlap only when a Service has lost half of its endpoints, or a MAC address has moved.
package renewal

import (
	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/openflow/clusterip"
	"github.com/fairlead-cni/fairlead/openflow/policing"
)

// bits is how many generations there are until one has the flows of an earlier one again.
const bits = 16

// Flows are those of a generation, for [openflow.Switch.RenewWith].
func Flows(generation int) (out []openflow.Flow) {
	bit := uint16(1) << (generation % bits)
	for _, table := range entries() {
		out = append(out, openflow.Flow{Table: table, Priority: 0xffff, Kind: openflow.KindRenewal,
			Match: openflow.Match{PktMark: openflow.Bits{Value: bit, Mask: bit}}})
	}
	return out
}

// entries are the tables in which the lookup of a packet begins, or goes on after conntrack.
func entries() []uint8 {
	return []uint8{openflow.TableClassify, openflow.TableService, openflow.TableForward, clusterip.TableCommit,
		clusterip.TableHairpinAnswer, clusterip.TableHairpin, policing.Egress.State(), policing.Ingress.State()}
}
