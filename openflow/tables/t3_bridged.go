package tables

import (
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/openflow"
)

// forwardToBridged returns the flows that lead to p: in its segment from the underlay, by its MAC only, and from pods;
// from the host; and from routed pods if p is untagged. Nothing else on this node leads to it.
func forwardToBridged(p Pod) []Flow {
	to := toPort(p.MAC, p.Port)
	flows := []Flow{{Kind: openflow.KindPod, Table: openflow.TableForward, Priority: forwardSegment,
		Actions: []Action{openflow.Output(p.Port)},
		Match:   Match{Source: openflow.FromUplink, Segment: p.segment(), EthDst: p.MAC}}}
	from := func(s openflow.Source, in openflow.Segment, priority uint16, a netip.Addr) {
		f := forwardTo(openflow.KindPod, priority, host(a), to...)
		f.Match.Source, f.Match.Segment = s, in
		flows = append(flows, f)
	}
	for _, a := range p.Addrs {
		from(openflow.FromBridged, p.segment(), forwardSegment, a)
		from(openflow.FromGateway, 0, forwardLocal, a)
		if p.VLAN == 0 {
			from(openflow.FromPod, 0, forwardLocal, a)
		}
	}
	if ll := p.MAC.LinkLocal(); slices.Contains(neighbours(p.MAC, p.Addrs), ll) {
		from(openflow.FromBridged, p.segment(), forwardSegment, ll)
	}
	return flows
}

// forwardBridged returns the flows for all other packets from bridged pods and the uplink. Neither ever matches a flow
// of routed pods.
func forwardBridged(v View) []Flow {
	segments := v.segments()
	if len(segments) == 0 {
		return nil
	}
	flows := []Flow{
		{Kind: openflow.KindUplink, Table: openflow.TableForward, Priority: forwardUplink,
			Match:   Match{Source: openflow.FromBridged},
			Actions: []Action{openflow.Goto(openflow.TableOutput)}},
		{Kind: openflow.KindUplink, Table: openflow.TableForward, Priority: forwardUplink,
			Match: Match{Source: openflow.FromUplink}},
	}
	fromBridged := func(kind openflow.Kind, priority uint16, dst netip.Prefix, to []Action) {
		f := forwardTo(kind, priority, dst, to...)
		f.Match.Source = openflow.FromBridged
		flows = append(flows, f)
	}
	if slices.Contains(segments, openflow.SegmentOf(0)) {
		flows = append(flows, forwardNearby(v)...)
	}
	if g := v.Gateway; g.present() {
		for _, dst := range v.viaHost() {
			fromBridged(openflow.KindGateway, forwardViaHost, dst, toPort(g.MAC, g.Port))
		}
		for _, cidr := range g.PodCIDRs {
			fromBridged(openflow.KindGateway, forwardNotOwn, cidr, nil)
		}
		for _, a := range g.Addrs {
			fromBridged(openflow.KindGateway, forwardOwn, host(a), toPort(g.MAC, g.Port))
		}
		for _, p := range v.Pods {
			for _, a := range p.Addrs {
				if !p.Bridged {
					fromBridged(openflow.KindPod, forwardOwn, host(a), toPort(g.MAC, g.Port))
				}
			}
		}
	}
	return flows
}

// forwardNearby returns the flows from untagged pods to routed pods of the node. A port silently drops what is larger
// than its MTU. The host, which gets that, fragments it or reports the MTU.
func forwardNearby(v View) (flows []Flow) {
	const header = 14 // of Ethernet
	untagged := openflow.SegmentOf(0)
	checks := v.RoutedMTU != 0 && v.Gateway.present()
	flow := func(in openflow.Segment, a netip.Addr, to ...Action) {
		f := forwardTo(openflow.KindPod, forwardNear, host(a), to...)
		f.Match.Source, f.Match.Segment = openflow.FromBridged, in
		flows = append(flows, f)
	}
	for _, p := range v.Pods {
		for _, a := range p.Addrs {
			switch {
			case p.Bridged:
			case checks:
				flow(untagged, a, openflow.SetSegment(untagged|openflow.SizeChecked),
					openflow.CheckLarger(v.RoutedMTU+header), openflow.Resubmit(openflow.TableForward))
				flow(untagged|openflow.SizeChecked, a, toPort(p.MAC, p.Port)...)
			default:
				flow(untagged, a, toPort(p.MAC, p.Port)...)
			}
		}
	}
	if checks {
		flows = append(flows, Flow{Kind: openflow.KindGateway, Table: openflow.TableForward, Priority: forwardTooLarge,
			Match:   Match{Source: openflow.FromBridged, Segment: untagged | openflow.SizeChecked | openflow.TooLarge},
			Actions: toPort(v.Gateway.MAC, v.Gateway.Port)})
	}
	return flows
}

// viaHost returns all destinations that bridged pods reach through the host.
func (v View) viaHost() []netip.Prefix {
	out := slices.Clone(v.ViaHost)
	for _, a := range slices.Concat(v.NodeAddrs, v.Gateway.Addrs) {
		out = append(out, host(a))
	}
	return tidy(out, netip.Prefix.Masked, netip.Prefix.Compare)
}
