package tables

import (
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/openflow"
)

// Priorities in table Classify.
const (
	classifyTag0     = 700 // a priority tag: as untagged
	classifyNoND     = 650 // drop: what only routers send; neighbour discovery in fragments, or that cannot be read
	classifyUplinkND = 600 // the underlay's neighbour discovery
	classifyUplink   = 500 // its frames in the segments of pods
	classifyTagged   = 400 // drop: no other port here has tagged frames, no pod is in another VLAN
	classifyND       = 300 // neighbour discovery that passes source validation
	classifyFalseND  = 250 // drop: all other solicitations and advertisements
	classifySource   = 200 // the sender's own packets
	classifyLastDrop = 0
)

// classify returns the flows of table 0: it records where a packet comes from and drops spoofed packets.
func classify(v View) []Flow {
	flows := append(v.room(11, 2), Flow{Kind: openflow.KindBase, Priority: classifyTagged, Match: Match{Tagged: true}},
		Flow{Kind: openflow.KindBase, Priority: classifyTag0, Match: Match{VLAN: openflow.PriorityTag},
			Actions: []Action{openflow.PopVLAN{}, openflow.Resubmit(0)}})
	drop := func(priority uint16, m Match) {
		m.EtherType = openflow.IPv6
		flows = append(flows, Flow{Kind: openflow.KindBase, Priority: priority, Match: m})
	}
	for _, t := range []uint8{openflow.NeighborSolicitation, openflow.NeighborAdvertisement} {
		// Not all hosts ignore fragments (RFC 6980). With invalid options Open vSwitch parses neither options nor target.
		drop(classifyNoND, Match{ICMPv6: t, Fragment: true})
		drop(classifyNoND, Match{ICMPv6: t, NDTarget: netip.IPv6Unspecified()})
		drop(classifyFalseND, Match{ICMPv6: t})
	}
	// Protocols 0 and 59: to Open vSwitch, a first fragment that ends before the protocol (RFC 7112). Or it ends after
	// that, and the message, of any type, is in the next one.
	for _, m := range []Match{{ICMPv6: openflow.RouterSolicitation}, {ICMPv6: openflow.RouterAdvertisement},
		{ICMPv6: openflow.Redirect}, {ICMPv6: openflow.NoMessage},
		{Protocol: 1 + 0}, {Protocol: 1 + 59}} {
		drop(classifyNoND, m)
	}
	flows = append(append(flows, Flow{Kind: openflow.KindBase, Priority: classifyLastDrop}), classifyGateway(v.Gateway)...)
	for _, p := range v.Pods {
		flows = append(flows, classifyPod(p)...)
	}
	flows = append(flows, classifyUplinks(v)...)
	if v.routed() {
		flows = classifyPeers(flows, v)
	}
	return flows
}

func classifyGateway(g Gateway) []Flow {
	if !g.present() {
		return nil
	}
	flow := func(priority uint16, m Match, actions ...Action) Flow {
		m.InPort = g.Port
		return Flow{Kind: openflow.KindGateway, Table: openflow.TableClassify, Priority: priority, Match: m, Actions: actions}
	}
	toForward := []Action{openflow.SetSource(openflow.FromGateway), openflow.Goto(openflow.TableForward)}
	return []Flow{
		flow(classifyND, Match{EtherType: openflow.IPv6, ICMPv6: openflow.NeighborSolicitation},
			openflow.Goto(openflow.TableResolve)),
		flow(classifyND, Match{EtherType: openflow.IPv6, ICMPv6: openflow.NeighborAdvertisement},
			openflow.Goto(openflow.TableResolve)),
		flow(classifySource, Match{EtherType: openflow.ARP}, openflow.Goto(openflow.TableResolve)),
		flow(classifySource, Match{EtherType: openflow.IPv4}, toForward...),
		flow(classifySource, Match{EtherType: openflow.IPv6}, toForward...),
	}
}

func classifyPod(p Pod) []Flow {
	flow := func(priority uint16, m Match, actions ...Action) Flow {
		m.InPort, m.EthSrc = p.Port, p.MAC
		return Flow{Kind: openflow.KindPod, Table: openflow.TableClassify, Priority: priority, Match: m,
			Actions: actions}
	}
	toResolve, toForward := []Action{openflow.Goto(openflow.TableResolve)},
		[]Action{openflow.SetSource(openflow.FromPod), openflow.Goto(openflow.TableForward)}
	if p.Bridged {
		toResolve = []Action{openflow.SetSource(openflow.FromBridged), openflow.SetSegment(p.segment()),
			openflow.Goto(openflow.TableResolve)}
		toForward = []Action{openflow.SetSource(openflow.FromBridged), openflow.SetSegment(p.segment()),
			openflow.Goto(openflow.TableForward)}
	}
	var flows []Flow
	for _, a := range neighbours(p.MAC, p.Addrs) {
		for _, m := range podND(p, a) {
			flows = append(flows, flow(classifyND, m, toResolve...))
		}
		if p.Bridged && a == p.MAC.LinkLocal() {
			for _, to := range []netip.Prefix{linkLocal, multicast6} {
				flows = append(flows, flow(classifySource, Match{EtherType: openflow.IPv6, Src: host(a), Dst: to}, toForward...))
			}
		}
	}
	for _, a := range p.Addrs {
		if a.Is4() {
			flows = append(flows, flow(classifySource, Match{EtherType: openflow.ARP, Src: host(a), ARPSha: p.MAC},
				toResolve...))
		}
		flows = append(flows, flow(classifySource, Match{EtherType: etherTypeOf(a), Src: host(a)}, toForward...))
	}
	return flows
}

// classifyUplinks pops the tag of underlay frames for the segments of pods. Their sources are not validated.
func classifyUplinks(v View) []Flow {
	segments := v.segments()
	if v.Uplink == 0 || len(segments) == 0 {
		return nil
	}
	flow := func(priority uint16, m Match, actions ...Action) Flow {
		m.InPort = v.Uplink
		return Flow{Kind: openflow.KindUplink, Table: openflow.TableClassify, Priority: priority, Match: m, Actions: actions}
	}
	var flows []Flow
	for _, s := range segments {
		var enter []Action
		if s.VLAN() != 0 {
			enter = append(enter, openflow.PopVLAN{})
		}
		enter = append(enter, openflow.SetSource(openflow.FromUplink), openflow.SetSegment(s))
		toResolve, toForward := append(slices.Clone(enter), openflow.Goto(openflow.TableResolve)), append(enter,
			openflow.Goto(openflow.TableForward))
		flows = append(flows,
			flow(classifyUplinkND, Match{VLAN: s, EtherType: openflow.IPv6, ICMPv6: openflow.NeighborSolicitation},
				toResolve...),
			flow(classifyUplinkND, Match{VLAN: s, EtherType: openflow.IPv6, ICMPv6: openflow.NeighborAdvertisement},
				toResolve...),
			flow(classifyUplink, Match{VLAN: s, EtherType: openflow.ARP}, toResolve...),
			flow(classifyUplink, Match{VLAN: s, EtherType: openflow.IPv4}, toForward...),
			flow(classifyUplink, Match{VLAN: s, EtherType: openflow.IPv6}, toForward...))
	}
	return flows
}

// podND matches the neighbour discovery that a pod may send for its address a. The link-layer address in it is the
// pod's or is omitted, as allowed in a unicast solicitation and a solicited advertisement (RFC 4861, 4.3 and 4.4). The
// IPv6 source of an advertisement is not validated: receivers use the target only.
func podND(p Pod, a netip.Addr) []Match {
	own, none := openflow.LinkAddr{Set: true, MAC: p.MAC}, openflow.LinkAddr{Set: true}
	solicit := Match{EtherType: openflow.IPv6, ICMPv6: openflow.NeighborSolicitation, Src: host(a)}
	advertise := Match{EtherType: openflow.IPv6, ICMPv6: openflow.NeighborAdvertisement, NDTarget: a}
	var out []Match
	for _, link := range []openflow.LinkAddr{own, none} {
		solicit.NDSll, advertise.NDTll = link, link
		out = append(out, solicit, advertise)
	}
	return out
}

// classifyPeers appends to flows. There may be thousands of peers: their flows share common values.
func classifyPeers(flows []Flow,
	v View) []Flow {
	// Here, not in Forward, which would need a second flow per pod.
	actions := []Action{openflow.SetSource(openflow.FromTunnel), openflow.SetEthSrc(v.Gateway.MAC),
		openflow.Goto(openflow.TableForward)}
	for _, p := range v.Peers {
		for _, cidrs := range [2][]netip.Prefix{p.PodCIDRs, p.Direct} {
			for _, cidr := range cidrs {
				flows = append(flows, Flow{
					Kind: openflow.KindPeer, Table: openflow.TableClassify, Priority: classifySource, Actions: actions,
					Match: Match{InPort: v.TunnelPort, TunSrc: p.Tunnel, EtherType: etherTypeOf(cidr.Addr()), Src: cidr},
				})
			}
		}
	}
	return flows
}
