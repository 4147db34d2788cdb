// Package policing has the flows with which Open vSwitch enforces policies on the node's pods: those that all rules
// share, and those that send a pod's packets to be judged. agent/policies builds the flows of rules.
//
// # The journey of a packet
//
// Only packets from and to pods to which a rule applies are judged: packets from pods after Services have translated
// them and before they are forwarded; packets to pods where they would be delivered. In each direction:
//
//	State      conntrack: packets of accepted connections, and their replies, continue; all others are judged
//	Peer       the class of the peer, by its address
//	Group      the pod's group
//	Admin, NetworkPolicy, Baseline    the rules
//	Accept     the connection is committed with the mark of this direction
//	Denied     what rules deny, if any pod of the node logs that: it is dropped, and some of it sent to the agent
//
// Deleting one flow lets nothing through, nor does deleting all flows of a table, of a kind, or of a pod's port: a
// table miss drops; NetworkPolicy continues to Baseline only for pods that have a flow there, because they are not
// isolated; flows without which a packet would get further exist [Twice], under two kinds; what a pod sends is marked
// as pending first; and what it sends that no flow of its port has sent to be judged is dropped by that mark, and by
// its address. The next resync restores the flows.
//
// From there the packet goes back to table Forward, recorded as judged (reg7, reg8). Flows of table Forward match it
// there again; no other flow depends on policies.
//
// # Conntrack
//
// A connection is committed only after the verdict. Its mark says for which of its ends it was accepted: a pod's packet
// continues if the connection was accepted as the pod's egress, or, for a reply, as the pod's ingress. Routed pods
// share one zone; each segment of bridged pods has its own, since two segments may use the same addresses.
package policing

import (
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/openflow/tables"
)

// Direction is a connection's direction, as seen by the pod that is judged.
type Direction uint8

const (
	Ingress Direction = 0
	Egress  Direction = 1
)

// Numbers of the egress tables, in packet order; those of ingress follow.
const (
	tableState = 20 + iota
	tablePeer
	tableGroup
	tableAdmin
	tableNetworkPolicy
	tableBaseline
	tableAccept
	tables1
)

// table returns the number of an egress table in a direction.
func (d Direction) table(egress uint8) uint8 {
	if d == Egress {
		return egress
	}
	return egress + tables1 - tableState
}

// State is the table in which a packet continues after conntrack.
func (d Direction) State() uint8 { return d.table(tableState) }

// Peer is the table in which a peer gets its class.
func (d Direction) Peer() uint8 { return d.table(tablePeer) }

// Group is the table in which the pod gets its group.
func (d Direction) Group() uint8 { return d.table(tableGroup) }

// Tier is the table of a tier's rules; tiers count from 1.
func (d Direction) Tier(tier uint8) uint8 { return d.table(tableGroup + tier) }

// stages are the names and purposes of the tables of a direction, in order.
var stages = [tables1 - tableState]struct{ name, purpose string }{
	{"State", "whether conntrack has the connection as accepted"},
	{"Peer", "which selectors and networks the peer matches"},
	{"Group", "which ClusterNetworkPolicies apply to the pod"},
	{"Admin", "the rules of ClusterNetworkPolicies of tier Admin"},
	{"NetworkPolicy", "the rules of NetworkPolicies"},
	{"Baseline", "the rules of ClusterNetworkPolicies of tier Baseline"},
	{"Accept", "the connection is accepted"},
}

// Denied is the table that drops what rules deny, if any pod's denied packets are logged; nothing gets past it.
// Otherwise the flows that deny drop directly.
func (d Direction) Denied() uint8 { return tables1 + tables1 - tableState + 1 - uint8(d) }

// Describe returns the name and the purpose of a table; ok is false if it is not of this package.
func Describe(table uint64) (name, purpose string, ok bool) {
	for _, d := range []Direction{Ingress, Egress} {
		if table == uint64(d.Denied()) {
			return [...]string{"Ingress", "Egress"}[d] + "Denied", "drops what policies deny, and has some of it logged", true
		}
		first := uint64(d.State())
		if table >= first && table < first+uint64(len(stages)) {
			s := stages[table-first]
			return [...]string{"Ingress", "Egress"}[d] + s.name, s.purpose, true
		}
	}
	return "", "", false
}

// Accept is the table that commits what is accepted.
func (d Direction) Accept() uint8 { return d.table(tableAccept) }

// mark is the mark bit of connections accepted in this direction.
func (d Direction) mark() uint8 { return 1 << d }

// Conntrack zones, beside those of package clusterip. Zone 0 is the host's.
const (
	zoneRouted   = 0xa001
	zoneSegments = 0x6000 // and the VLAN ID
)

// Priorities in table Forward, among those of package clusterip: a pod's packets are judged after they are translated
// to an endpoint, and before they are translated back as replies. So are packets to a pod: replies are judged as they
// come from the endpoint. The kernel's conntrack treats connections of which it sees only one direction as invalid.
// [Twice] uses the next lower ones, too.
const (
	fromRouted  = 405
	fromBridged = 536
	forRouted   = 402
	forBridged  = 534
	// The first of all for what a pod sends that must be judged.
	pending = 545
	// What such a pod has sent without being judged: below all flows that look a packet up again, above all that forward
	// it.
	unjudgedRouted  = 399
	unjudgedBridged = 529
)

// Priorities in table Service, besides those of package clusterip: what a pod sends to the host is judged as well.
// [Twice] uses the next lower ones, too, and flows for what was not judged those below.
const (
	serviceFragment = 253
	serviceHost     = 3
)

// Priorities in the tables State.
const (
	stateAnswers   = 121 // of a connection that is denied now, to delete it from conntrack
	stateEnded     = 120 // its other packets
	stateListeners = 110 // multicast: without their reports, switches do not deliver neighbour discovery
	stateInvalid   = 100
	stateRelated   = 90
	stateUnrelated = 88 // and 87
	stateSCTP      = 85 // and 84
	stateAccepted  = 80
	stateOther     = 70 // a reply in a connection that was not accepted
	stateNode      = 60 // the node reaches its own pods
	stateNew       = 0
)

const last = 0 // priority

// IP protocols and message types of multicast listeners (IANA; RFC 2710, RFC 3810).
const (
	igmp                         = 2
	sctp                         = 132
	mldQuery, mldReport, mldDone = 130, 131, 132
	mldReport2                   = 143
)

// Addresses of multicast groups.
var (
	groups4 = netip.MustParsePrefix("224.0.0.0/4")
	groups6 = netip.MustParsePrefix("ff00::/8")
)

// Pod is a pod to which a rule applies, with a number unique on the node.
type Pod struct {
	tables.Pod
	Number uint32
}

func flow(table uint8, priority uint16, m openflow.Match, actions ...openflow.Action) openflow.Flow {
	return openflow.Flow{Kind: openflow.KindPolicy, Table: table, Priority: priority, Match: m, Actions: actions}
}

// Twice returns flows and the Twin of each. Use it for flows without which a packet would get further.
func Twice(flows ...openflow.Flow) []openflow.Flow {
	out := slices.Clone(flows)
	for _, f := range flows {
		out = append(out, Twin(f))
	}
	return out
}

// Twin returns f with the next lower priority: if one of the two is missing, packets are handled the same.
func Twin(f openflow.Flow) openflow.Flow {
	f.Priority, f.Kind = f.Priority-1, openflow.KindPolicyTwin
	return f
}

func ethertype(a netip.Addr) openflow.EtherType {
	if a.Is4() {
		return openflow.IPv4
	}
	return openflow.IPv6
}

func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// judged records that a packet has been judged, and forwards it.
func (d Direction) judged() []openflow.Action {
	set := openflow.SetIngress(openflow.Accepted)
	if d == Egress {
		set = openflow.SetEgress(openflow.Accepted)
	}
	return []openflow.Action{set, openflow.Resubmit(openflow.TableForward)}
}

// Shared returns the flows that all rules and pods share. node are the source addresses of the node's own processes
// towards its pods.
func Shared(node []netip.Addr) []openflow.Flow {
	var out []openflow.Flow
	for _, d := range []Direction{Ingress, Egress} {
		out = append(out, d.state()...)
		for t := d.Peer(); t < d.Accept(); t++ {
			if t != d.table(tableNetworkPolicy) {
				out = append(out, flow(t, last, openflow.Match{}, openflow.Goto(t+1)))
			}
		}
		for _, t := range []openflow.EtherType{openflow.IPv4, openflow.IPv6} {
			out = append(out, flow(d.Accept(), last, openflow.Match{EtherType: t}, append([]openflow.Action{openflow.Conntrack{
				Commit: true, ZoneReg: openflow.RegisterZone, Table: openflow.NoTable, Mark: d.mark()}}, d.judged()...)...))
		}
	}
	// What must be judged but did not match the flows of its port. By a register, which does not narrow other megaflows.
	for _, t := range []openflow.EtherType{openflow.IPv4, openflow.IPv6} {
		m := openflow.Match{EtherType: t, Egress: openflow.Pending}
		out = append(out, twin(openflow.TableService, serviceHost-2, m))
		m.CTState, m.Fragment = untranslated, true
		out = append(out, twin(openflow.TableService, serviceFragment-2, m))
	}
	for _, a := range node {
		m := openflow.Match{Source: openflow.FromGateway, EtherType: ethertype(a), Src: host(a)}
		out = append(out, flow(Ingress.State(), stateNode, m, openflow.Goto(Ingress.Accept())))
	}
	return append(out, listeners()...)
}

// state returns the flows of a table State.
func (d Direction) state() []openflow.Flow {
	t := d.State()
	is := func(set, unset uint16) openflow.Match {
		set |= openflow.CTTracked
		return openflow.Match{CTState: openflow.Bits{Value: set, Mask: set | unset}}
	}
	marked := func(m openflow.Match, bit uint8) openflow.Match {
		m.CTMark = openflow.Bits{Value: uint16(bit), Mask: uint16(bit)}
		return m
	}
	answer := is(openflow.CTReply, 0)
	out := []openflow.Flow{
		flow(t, stateInvalid, is(openflow.CTInvalid, 0)),
		flow(t, stateAccepted, marked(is(0, openflow.CTReply), d.mark()), d.judged()...),
		flow(t, stateAccepted, marked(answer, (1-d).mark()), d.judged()...),
		flow(t, stateOther, answer),
		flow(t, stateNew, openflow.Match{}, openflow.Goto(t+1)),
	}
	// Conntrack checks only the destination of an error about a connection, not its source. So its receiver has the
	// connection, but its sender may not: errors sent by a pod need their own flow.
	if related := is(openflow.CTRelated, 0); d == Ingress {
		out = append(out, flow(t, stateRelated, related, d.judged()...))
	} else {
		out = append(out, Twice(flow(t, stateUnrelated, related))...)
	}
	// Before Open vSwitch 3.2 the userspace datapath ignores SCTP ports: all SCTP of two hosts is one connection to it. So
	// each packet is judged, except replies.
	for _, family := range []openflow.EtherType{openflow.IPv4, openflow.IPv6} {
		m := is(0, openflow.CTReply)
		m.EtherType, m.Protocol = family, 1+sctp
		out = append(out, Twice(flow(t, stateSCTP, m, openflow.Goto(t+1)))...)
	}
	return out
}

// NotIsolated makes packets of a pod continue to the next tier if no NetworkPolicy rule has accepted them: the pod is
// not isolated in this direction.
func (d Direction) NotIsolated(pod uint32) openflow.Flow {
	t := d.table(tableNetworkPolicy)
	return flow(t, last, openflow.Match{Judged: pod}, openflow.Goto(t+1))
}

// LogDenied sends the agent some of the denied packets of a pod.
func LogDenied(pod uint32) (out []openflow.Flow) {
	for _, d := range []Direction{Egress, Ingress} {
		out = append(out, flow(d.Denied(), last+1, openflow.Match{Judged: pod}, openflow.OutputController))
	}
	return out
}

// Ended drops the packets of a connection whose first packet went from one address to another, when judged for the pod
// of that number.
func Ended(pod uint32, protocol uint8, from, to netip.AddrPort) (out []openflow.Flow) {
	m := openflow.Match{EtherType: ethertype(from.Addr()), Judged: pod, Protocol: 1 + uint16(protocol)}
	answer := m
	m.Src, m.SrcPort = host(from.Addr()), openflow.Port(from.Port())
	m.Dst, m.DstPort = host(to.Addr()), openflow.Port(to.Port())
	answer.Src, answer.SrcPort, answer.Dst, answer.DstPort = m.Dst, m.DstPort, m.Src, m.SrcPort
	for _, d := range []Direction{Ingress, Egress} {
		t := d.State()
		out = append(out, flow(t, stateEnded, m), flow(t, stateAnswers, answer))
	}
	return out
}

// EndedBy returns the arguments of Ended, except the pod, if f is one of its flows, but not one for replies.
func EndedBy(f openflow.Flow) (protocol uint8, from, to netip.AddrPort, ok bool) {
	ours := f.Table == Ingress.State() || f.Table == Egress.State()
	if !ours || f.Priority != stateEnded {
		return 0, from, to, false
	}
	return uint8(f.Match.Protocol - 1), netip.AddrPortFrom(f.Match.Src.Addr(), f.Match.SrcPort.Value),
		netip.AddrPortFrom(f.Match.Dst.Addr(), f.Match.DstPort.Value), true
}

// listeners let the reports of multicast listeners through: those of bridged pods, as sent on the link, to groups and
// with a TTL of 1 (RFC 3376, 4; RFC 3810, 5). A pod can write anything after the headers. Those of routed pods, whose
// multicast is not forwarded, are dropped here, before they count as denied by rules.
func listeners() (out []openflow.Flow) {
	add := func(m openflow.Match) {
		m.Source = openflow.FromPod
		out = append(out, flow(Egress.State(), stateListeners, m))
		m.Source, m.TTL = openflow.FromBridged, 1
		out = append(out, flow(Egress.State(), stateListeners, m, Egress.judged()...))
	}
	add(openflow.Match{EtherType: openflow.IPv4, Dst: groups4, Protocol: 1 + igmp})
	for _, kind := range []uint8{mldQuery, mldReport, mldDone, mldReport2} {
		add(openflow.Match{EtherType: openflow.IPv6, Dst: groups6, ICMPv6: 1 + kind})
	}
	return out
}

// Zone returns the conntrack zone of a pod's connections.
func (p Pod) Zone() uint16 {
	if !p.Bridged {
		return zoneRouted
	}
	return zoneSegments + p.VLAN
}

// Flows returns the flows that send the packets of p to be judged; none for a pod whose port does not exist yet.
// services: ClusterIPs are translated.
func (p Pod) Flows(services bool) []openflow.Flow {
	if p.Port == 0 {
		return nil
	}
	judge := func(d Direction) []openflow.Action {
		// A packet between two pods is judged twice: the class and group of one end must not apply to the other.
		return []openflow.Action{openflow.SetJudged(p.Number), openflow.SetClass(0), openflow.SetGroup(0),
			openflow.SetZone(p.Zone()), openflow.Conntrack{Zone: p.Zone(), Table: d.State()}}
	}
	egress := uint16(fromRouted)
	if p.Bridged {
		egress = fromBridged
	}
	var out []openflow.Flow
	for _, t := range []openflow.EtherType{openflow.IPv4, openflow.IPv6} {
		m := openflow.Match{EtherType: t, InPort: p.Port}
		if services { // what no Unit matches
			out = append(out, flow(openflow.TableService, serviceHost, m, openflow.Goto(openflow.TableForward)))
			fragment := m
			fragment.CTState, fragment.Fragment = untranslated, true
			out = append(out, flow(openflow.TableService, serviceFragment, fragment, openflow.Goto(openflow.TableForward)))
		}
		m.Egress = openflow.NotYet
		out = append(out, flow(openflow.TableForward, pending, m, openflow.SetEgress(openflow.Pending),
			openflow.Resubmit(openflow.TableForward)))
		m.Egress = openflow.Pending
		out = append(out, flow(openflow.TableForward, egress, m, judge(Egress)...))
	}
	for _, in := range p.delivered() {
		in.match.Ingress = openflow.NotYet
		out = append(out, flow(openflow.TableForward, in.priority, in.match, judge(Ingress)...))
	}
	return slices.Concat(Twice(out...), p.unjudged(), p.related())
}

// related returns the flows that let p send errors about its connections, as their client or as their server. With the
// kernel's datapath, Open vSwitch 3.1 does not get a connection's addresses from an error in the direction of its first
// packet: there those of clients are dropped.
func (p Pod) related() (out []openflow.Flow) {
	for _, a := range p.Own() {
		m := openflow.Match{EtherType: ethertype(a), Judged: p.Number, CTState: openflow.Bits{
			Value: openflow.CTTracked | openflow.CTRelated, Mask: openflow.CTTracked | openflow.CTRelated}}
		from, to := m, m
		from.CTSrc, to.CTDst = a, a
		for _, m := range []openflow.Match{from, to} {
			out = append(out, flow(Egress.State(), stateRelated, m, Egress.judged()...))
		}
	}
	return out
}

// Own returns the addresses that p may use in connections: its own, and on the underlay its link-local one.
func (p Pod) Own() []netip.Addr {
	if !p.Bridged {
		return p.Addrs
	}
	return append(slices.Clone(p.Addrs), p.MAC.LinkLocal())
}

// unjudged returns the flows that drop what p sends, by its addresses, if the flows that match its port are missing.
func (p Pod) unjudged() (out []openflow.Flow) {
	m, priority := openflow.Match{Source: openflow.FromPod}, uint16(unjudgedRouted)
	if p.Bridged {
		m.Source, m.Segment, priority = openflow.FromBridged, openflow.SegmentOf(p.VLAN), unjudgedBridged
	}
	for _, a := range p.Own() {
		m.EtherType, m.Src, m.Egress = ethertype(a), host(a), openflow.NotYet
		out = append(out, twin(openflow.TableForward, priority, m))
	}
	return out
}

// twin returns a flow that drops what others would let continue.
func twin(table uint8, priority uint16, m openflow.Match) openflow.Flow {
	f := flow(table, priority, m)
	f.Kind = openflow.KindPolicyTwin
	return f
}

// untranslated is the state of packets to Services without a connection yet.
var untranslated = openflow.Bits{Value: openflow.CTTracked | openflow.CTNew, Mask: openflow.CTTracked | openflow.CTNew}

// delivery returns a Match in table Forward for packets that would be delivered to a pod.
type delivery struct {
	priority uint16
	match    openflow.Match
}

func (p Pod) delivered() []delivery {
	var out []delivery
	to := func(priority uint16, from openflow.Source, in openflow.Segment, a netip.Addr) {
		m := openflow.Match{EtherType: ethertype(a), Source: from, Segment: in, Dst: host(a)}
		out = append(out, delivery{priority, m})
	}
	for _, a := range p.Addrs {
		if !p.Bridged {
			to(forRouted, 0, 0, a)
			to(forBridged, openflow.FromBridged, openflow.SegmentOf(0), a)
			continue
		}
		to(forBridged, openflow.FromBridged, openflow.SegmentOf(p.VLAN), a)
		to(forRouted, openflow.FromGateway, 0, a)
		if p.VLAN == 0 {
			to(forRouted, openflow.FromPod, 0, a)
		}
	}
	if !p.Bridged {
		return out
	}
	to(forBridged, openflow.FromBridged, openflow.SegmentOf(p.VLAN), p.MAC.LinkLocal())
	for _, t := range []openflow.EtherType{openflow.IPv4, openflow.IPv6} {
		out = append(out, delivery{forBridged, openflow.Match{EtherType: t, Source: openflow.FromUplink,
			Segment: openflow.SegmentOf(p.VLAN), EthDst: p.MAC}})
	}
	return out
}
