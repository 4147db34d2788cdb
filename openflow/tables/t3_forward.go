package tables

import (
	"net/netip"

	"github.com/fairlead-cni/fairlead/openflow"
)

// Priorities in table Forward.
const (
	forwardSegment  = 500 // bridged pods in their segment
	forwardTooLarge = 491 // of forwardNear, packets larger than routed pods' MTU: to the host
	forwardNear     = 490 // from untagged ones to routed pods of this node
	forwardOwn      = 485 // from bridged pods, through the host, to used addresses of the node's own podCIDRs
	forwardNotOwn   = 482 // drop: the rest of these, since the host would keep a neighbour entry for each address
	forwardViaHost  = 480 // from bridged pods to the host and through it
	forwardUplink   = 470 // the rest of the segments: out, or drop
	forwardNever    = 300 // drop: destinations that are never routed
	forwardLocal    = 200 // local pods and the gateway itself
	forwardUnknown  = 150 // drop: the rest of the node's own podCIDRs
	forwardPeer     = 100
	forwardHost     = 50
	forwardLastDrop = 0
)

// Destinations that are never routed: multicast, broadcast and link-local addresses (RFC 4291, 2.5.6 and 2.7).
// Neighbour discovery, which uses them, never reaches this table.
var (
	linkLocal  = netip.MustParsePrefix("fe80::/10")
	multicast6 = netip.MustParsePrefix("ff00::/8")
	multicast4 = netip.MustParsePrefix("224.0.0.0/4")
	broadcast4 = netip.MustParsePrefix("255.255.255.255/32")
)

// forward returns the flows of table 3: they map the destination address to port, Ethernet header and TTL.
func forward(v View) []Flow {
	flows := append(v.room(2, 4), Flow{Kind: openflow.KindBase, Table: openflow.TableForward, Priority: forwardLastDrop})
	for _, p := range []netip.Prefix{multicast4, broadcast4, multicast6, linkLocal} {
		flows = append(flows, forwardTo(openflow.KindBase, forwardNever, p))
	}
	flows = append(flows, forwardGateway(v.Gateway)...)
	for _, p := range v.Pods {
		if p.Bridged {
			flows = append(flows, forwardToBridged(p)...)
			continue
		}
		for _, a := range p.Addrs {
			flows = append(flows, forwardTo(openflow.KindPod, forwardLocal, host(a), toPort(p.MAC, p.Port)...))
		}
	}
	flows = append(flows, forwardBridged(v)...)
	if v.routed() {
		flows = forwardToPeers(flows, v)
	}
	return flows
}

func forwardTo(kind openflow.Kind, priority uint16, dst netip.Prefix, actions ...Action) Flow {
	return Flow{Kind: kind, Table: openflow.TableForward, Priority: priority,
		Match: Match{EtherType: etherTypeOf(dst.Addr()), Dst: dst}, Actions: actions}
}

func forwardGateway(g Gateway) []Flow {
	var flows []Flow
	for _, cidr := range g.PodCIDRs {
		flows = append(flows, forwardTo(openflow.KindGateway, forwardUnknown, cidr))
	}
	if !g.present() {
		return flows
	}
	to := toPort(g.MAC, g.Port)
	for _, a := range g.Addrs {
		flows = append(flows, forwardTo(openflow.KindGateway, forwardLocal, host(a), to...))
	}
	for _, t := range []openflow.EtherType{openflow.IPv4, openflow.IPv6} {
		flows = append(flows, Flow{Kind: openflow.KindGateway, Table: openflow.TableForward, Priority: forwardHost,
			Match: Match{EtherType: t, Source: openflow.FromPod}, Actions: to})
	}
	return flows
}

// forwardToPeers appends the flows that route to peers' pods. There is none for packets from the tunnel: a peer's
// packets are never forwarded to another.
func forwardToPeers(flows []Flow, v View) []Flow {
	ttl, mac, output := Action(openflow.DecTTL{}), Action(openflow.SetEthSrc(v.Gateway.MAC)),
		Action(openflow.Output(v.TunnelPort))
	for _, p := range v.Peers {
		to := Action(openflow.SetTunDst(p.Tunnel))
		fromPod, fromHost := []Action{ttl, mac, to, output}, []Action{to, output}
		for _, cidr := range p.PodCIDRs {
			pod, host := forwardTo(openflow.KindPeer, forwardPeer, cidr, fromPod...), forwardTo(openflow.KindPeer,
				forwardPeer, cidr, fromHost...)
			pod.Match.Source, host.Match.Source = openflow.FromPod, openflow.FromGateway
			flows = append(flows, pod, host)
		}
	}
	return flows
}
