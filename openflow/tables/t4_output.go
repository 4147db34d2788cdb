package tables

import "github.com/fairlead-cni/fairlead/openflow"

// Priorities in table Output.
const (
	outputUplink   = 100
	outputLastDrop = 0
)

// output returns the flows of table 4: what leaves by the uplink gets the tag of its segment. Only frames of bridged
// pods come here, and Classify has seen that each has its pod's MAC as source. One with the node's would teach the
// underlay's switches, the node's own among them, the wrong port.
func output(v View) []Flow {
	segments := v.segments()
	if len(segments) == 0 {
		return nil
	}
	flows := []Flow{{Kind: openflow.KindBase, Table: openflow.TableOutput, Priority: outputLastDrop}}
	if v.Uplink == 0 {
		return flows
	}
	for _, s := range segments {
		var leave []Action
		if s.VLAN() != 0 {
			leave = append(leave, openflow.PushVLAN(openflow.TPID), openflow.SetVLAN(s.VLAN()))
		}
		flows = append(flows, Flow{Kind: openflow.KindUplink, Table: openflow.TableOutput, Priority: outputUplink,
			Match: Match{Source: openflow.FromBridged, Segment: s}, Actions: append(leave, openflow.Output(v.Uplink))})
	}
	return flows
}
