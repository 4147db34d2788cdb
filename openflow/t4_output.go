package openflow

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
	flows := []Flow{{Kind: KindBase, Table: TableOutput, Priority: outputLastDrop}}
	if v.Uplink == 0 {
		return flows
	}
	for _, s := range segments {
		var leave []Action
		if s.vlan() != 0 {
			leave = append(leave, PushVLAN(tpid), SetVLAN(s.vlan()))
		}
		flows = append(flows, Flow{Kind: KindUplink, Table: TableOutput, Priority: outputUplink,
			Match: Match{Source: FromBridged, Segment: s}, Actions: append(leave, Output(v.Uplink))})
	}
	return flows
}
