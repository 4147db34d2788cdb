package openflow

import (
	"net/netip"

	"github.com/fairlead-cni/fairlead/api"
)

// Priorities in table Resolve.
const (
	resolveOwner    = 200
	resolveForHost  = 100 // answers to a question that no pod asked
	resolveLastDrop = 0
)

// resolve returns the flows of table 1: ARP and neighbour discovery go to the
// one port that owns the address asked for, or that asked.
func resolve(v View) []Flow {
	flows := append(v.room(5, 0), Flow{Kind: KindBase, Table: tableResolve, Priority: resolveLastDrop})
	if g := v.Gateway; g.present() {
		to := toPort(g.MAC, g.Port)
		flows = append(flows, resolveTo(KindGateway, to, g.MAC, g.Addrs)...)
		flows = append(flows,
			Flow{Kind: KindGateway, Table: tableResolve, Priority: resolveForHost, Actions: to,
				Match: Match{EtherType: ARP, ARPOp: arpReply}},
			Flow{Kind: KindGateway, Table: tableResolve, Priority: resolveForHost, Actions: to,
				Match: Match{EtherType: IPv6, ICMPv6: neighborAdvertisement, Dst: linkLocal()}})
	}
	for _, p := range v.Pods {
		flows = append(flows, resolveTo(KindPod, toPort(p.MAC, p.Port), p.MAC, p.Addrs)...)
	}
	return flows
}

// resolveTo steers to the owner of addrs: an ARP request or reply names it as
// target, a solicitation in its target, an advertisement is sent to it.
func resolveTo(kind Kind, to []Action, mac api.MAC, addrs []netip.Addr) []Flow {
	var flows []Flow
	add := func(m Match) {
		flows = append(flows, Flow{Kind: kind, Table: tableResolve, Priority: resolveOwner, Match: m, Actions: to})
	}
	for _, a := range addrs {
		if a.Is4() {
			add(Match{EtherType: ARP, Dst: host(a)})
		}
	}
	for _, a := range neighbours(mac, addrs) {
		add(Match{EtherType: IPv6, ICMPv6: neighborSolicitation, NDTarget: a})
		add(Match{EtherType: IPv6, ICMPv6: neighborAdvertisement, Dst: host(a)})
	}
	return flows
}

// toPort delivers a frame to the owner of mac behind port.
func toPort(mac api.MAC, port uint32) []Action { return []Action{SetEthDst(mac), Output(port)} }
