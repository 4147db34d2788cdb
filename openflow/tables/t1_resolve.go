package tables

import (
	"net/netip"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/openflow"
)

// Priorities in table Resolve.
const (
	resolveAnnounce = 450 // a bridged pod's gratuitous ARP
	resolveSegment  = 400 // owners in a segment of the underlay
	resolveUplink   = 300 // the rest of the segments: out, or drop
	resolveOwner    = 200
	resolveForHost  = 100 // replies that no pod requested
	resolveLastDrop = 0
)

// ndTTL is the hop limit of all neighbour discovery: with another one it has passed a router, or was meant to, and
// hosts ignore it (RFC 4861, 7.1). It would only carry data past the policy tables.
const ndTTL = 255

// linkGroups are the groups to which no router forwards (RFC 4291, 2.7).
var linkGroups = netip.MustParsePrefix("ff02::/16")

// resolve returns the flows of table 1: ARP and neighbour discovery go to the one port that owns the target address, or
// to the requester.
func resolve(v View) []Flow {
	flows := append(v.room(5, 0), Flow{Kind: openflow.KindBase, Table: openflow.TableResolve, Priority: resolveLastDrop})
	if g := v.Gateway; g.present() {
		to := toPort(g.MAC, g.Port)
		flows = append(flows, resolveToGateway(g, to)...)
		flows = append(flows,
			Flow{Kind: openflow.KindGateway, Table: openflow.TableResolve, Priority: resolveForHost, Actions: to,
				Match: Match{EtherType: openflow.ARP, ARPOp: openflow.ARPReply}},
			Flow{Kind: openflow.KindGateway, Table: openflow.TableResolve, Priority: resolveForHost, Actions: to,
				Match: Match{EtherType: openflow.IPv6, ICMPv6: openflow.NeighborAdvertisement, Dst: linkLocal, TTL: ndTTL}})
	}
	for _, p := range v.Pods {
		flows = append(flows, resolveTo(openflow.KindPod, p.segment(), toPort(p.MAC, p.Port), p.MAC, p.Addrs)...)
	}
	return append(flows, resolveUnderlay(v)...)
}

// resolveUnderlay returns the flows for addresses that no pod of a segment here has: a bridged pod's requests, replies
// and announcements go out, and the underlay's are dropped. Which addresses are on the link is unknown: it may have
// prefixes that no pool has, and hosts send requests from those.
func resolveUnderlay(v View) []Flow {
	if len(v.segments()) == 0 {
		return nil
	}
	flow := func(kind openflow.Kind, priority uint16, m Match, actions ...Action) Flow {
		return Flow{Kind: kind, Table: openflow.TableResolve, Priority: priority, Match: m, Actions: actions}
	}
	flows := []Flow{
		flow(openflow.KindUplink, resolveUplink, Match{Source: openflow.FromBridged, EtherType: openflow.ARP},
			openflow.Goto(openflow.TableOutput)),
		flow(openflow.KindUplink, resolveUplink, Match{Source: openflow.FromBridged, EtherType: openflow.IPv6, TTL: ndTTL},
			openflow.Goto(openflow.TableOutput)),
		flow(openflow.KindUplink, resolveUplink, Match{Source: openflow.FromUplink}),
	}
	for _, p := range v.Pods {
		for _, a := range p.Addrs {
			if p.Bridged && a.Is4() {
				m := Match{Source: openflow.FromBridged, Segment: p.segment(), EtherType: openflow.ARP, Src: host(a), Dst: host(a)}
				flows = append(flows, flow(openflow.KindPod, resolveAnnounce, m, openflow.Goto(openflow.TableOutput)))
			}
		}
	}
	for _, a := range v.NodeAddrs {
		if g := v.Gateway; g.present() && a.Is4() {
			m := Match{Source: openflow.FromBridged, EtherType: openflow.ARP, ARPOp: openflow.ARPRequest, Dst: host(a)}
			flows = append(flows, flow(openflow.KindGateway, resolveSegment, m, answerARP(g.MAC, a)...))
		}
	}
	return flows
}

// answerARP turns a request for a into the reply that a is at mac. The host could not always reply: on the interface
// with a, rp_filter=1 drops pods' requests, as their route leads to the gateway, and on the gateway, which does not
// have a, arp_ignore=1 does.
func answerARP(mac api.MAC, a netip.Addr) []Action {
	return []Action{openflow.Move("eth_src", "eth_dst"), openflow.SetEthSrc(mac), openflow.SetARPOp(openflow.ARPReply),
		openflow.Move("arp_sha", "arp_tha"), openflow.Move("arp_spa", "arp_tpa"), openflow.SetARPSha(mac),
		openflow.SetARPSpa(a), openflow.OutputInPort}
}

// resolveTo sends packets in the segment to the owner of addrs: an ARP request or reply has it as target, so has a
// solicitation, and an advertisement as destination.
func resolveTo(kind openflow.Kind, in openflow.Segment, to []Action, mac api.MAC, addrs []netip.Addr) []Flow {
	var flows []Flow
	add := func(m Match) {
		f := Flow{Kind: kind, Table: openflow.TableResolve, Priority: resolveOwner, Match: m, Actions: to}
		if in != 0 {
			f.Priority, f.Match.Segment = resolveSegment, in
		}
		flows = append(flows, f)
	}
	for _, a := range addrs {
		if a.Is4() {
			add(Match{EtherType: openflow.ARP, Dst: host(a)})
		}
	}
	for _, a := range neighbours(mac, addrs) {
		add(Match{EtherType: openflow.IPv6, ICMPv6: openflow.NeighborSolicitation, NDTarget: a, TTL: ndTTL})
		add(Match{EtherType: openflow.IPv6, ICMPv6: openflow.NeighborAdvertisement, Dst: host(a), TTL: ndTTL})
	}
	return flows
}

// resolveToGateway is resolveTo for the host, which would route packets that are not for it: a solicitation's
// destination is the address in question, or a group of the link (RFC 4861, 4.3).
func resolveToGateway(g Gateway, to []Action) (flows []Flow) {
	for _, f := range resolveTo(openflow.KindGateway, 0, to, g.MAC, g.Addrs) {
		if f.Match.ICMPv6 == openflow.NeighborSolicitation {
			group := f
			f.Match.Dst, group.Match.Dst = host(f.Match.NDTarget), linkGroups
			flows = append(flows, group)
		}
		flows = append(flows, f)
	}
	return flows
}

// toPort delivers a frame to the owner of mac behind port.
func toPort(mac api.MAC, port uint32) []Action {
	return []Action{openflow.SetEthDst(mac), openflow.Output(port)}
}
