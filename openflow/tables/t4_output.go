package tables

import (
	"net/netip"

	"github.com/fairlead-cni/fairlead/openflow"
)

// Priorities in table Output.
const (
	outputNoRouter = 200 // drop: protocols with which routers elect the gateway
	outputUplink   = 100
	outputLastDrop = 0
)

// output returns the flows of table 4: what leaves by the uplink gets the tag of its segment. Only frames of bridged
// pods arrive here, and Classify has checked that each has its pod's MAC as source. With the node's MAC, the underlay's
// switches, including the node's own, would learn the wrong port.
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
	return append(flows, outputNoRouters()...)
}

// outputNoRouters drops packets that make routers yield their addresses to the sender: VRRP (RFC 9568), HSRP of both
// versions and GLBP. A pod cannot be such a router: Classify drops the shared address and MAC from all pods. Other
// routing protocols pass. Matching IPv4 by group only, and IPv6 by protocol, which Classify has already matched, costs
// no megaflow.
func outputNoRouters() (out []Flow) {
	const vrrp, udp, hsrp = 112, 17, 1985
	all := Match{EtherType: openflow.IPv4, Dst: host(netip.AddrFrom4([4]byte{224, 0, 0, 2})), Protocol: 1 + udp,
		DstPort: openflow.Port(hsrp)}
	for _, m := range []Match{all, {EtherType: openflow.IPv4, Dst: host(netip.AddrFrom4([4]byte{224, 0, 0, 18}))},
		{EtherType: openflow.IPv4, Dst: host(netip.AddrFrom4([4]byte{224, 0, 0, 102}))},
		{EtherType: openflow.IPv6, Protocol: 1 + vrrp}} {
		out = append(out, Flow{Kind: openflow.KindBase, Table: openflow.TableOutput, Priority: outputNoRouter, Match: m})
	}
	return out
}
