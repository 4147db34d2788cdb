// Package clusterip has the flows with which Open vSwitch translates ClusterIPs for pods. [Flows] is a pure function
// from a View and [Services] to the flows that any number of Services share; [Unit] is one port of a Service.
//
// # The journey of a packet
//
// A client's packet to a ClusterIP goes through two conntrack zones in one pass. The first has the connection's
// endpoint, the second the port to which the client was moved: one below 32768. From there it is forwarded as if the
// client had sent it to the endpoint itself, so the endpoint sees the client's own address, on any path.
//
// A reply is intercepted where it would be delivered to the client: it is the only traffic there with both ports below
// 32768, except that of programs that bind such ports themselves. It goes back through the two zones, and on as the
// ClusterIP's reply. So no flow needs to identify endpoint pods, and all other traffic is forwarded as without
// Services: in two tables, without conntrack.
//
//	2 Service         known connection: on. New connection: to an endpoint, by a Unit. Neither: to the host
//	5 Commit          the client's port is moved; a client that is its own endpoint gets the node's address as source
//	6 HairpinAnswer   back to the client that is its own endpoint
//	7 Hairpin         out of its ingress port
//	8 Affinity        with session affinity: the client's last endpoint, as learned from its last connection
//	9 Endpoint        the connection goes there, if it still is an endpoint, or to any; table 8 learns which
//
// What is not translated (a port that no Service has, a Service without endpoints, ICMP, SCTP, a TCP packet of an
// unknown connection) goes to the host, as without these flows.
//
// # Zones
//
// Routed pods share a pair of zones. Each segment of bridged pods has its own pair, since two segments may use the same
// addresses. reg3 holds the first zone of the pair, so all clients share the groups. [Timeouts] say how soon the port
// of an ended connection is free again.
package clusterip

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/openflow/tables"
)

// Numbers of the tables, beside those in package openflow.
const (
	TableCommit        = 5
	TableHairpinAnswer = 6
	TableHairpin       = 7
)

// Priorities in table Forward, among those of package openflow: replies to and requests from routed pods come before
// all other flows of routed pods, those of bridged pods before all other flows of bridged pods.
const (
	bridgedRequest = 540
	bridgedHairpin = 538
	nearAnswer     = 532 // of untagged bridged pods to routed ones
	bridgedAnswer  = 530
	request        = 420
	hairpin        = 410
	answer         = 400
)

// Priorities in table Service; openflow.UnitPriority is between them.
const (
	serviceHairpin  = 310
	serviceKnown    = 300
	serviceFragment = 250
	serviceHost     = 0
)

// learned is the cookie of flows that packets have added: Fairlead's, and a Service's.
const learned = 0x666c<<48 | uint64(openflow.KindService)<<40

// Conntrack zones. Zone 0 is the host's. The distance between the two zones of a pair is the same for all pairs.
const (
	zoneRouted   = 0xa000
	zoneSegments = 0x8000 // and the VLAN ID
	zonePorts    = 0x1000 // from the first zone of a pair to the second
)

// The ports to which clients are moved: below those that Linux assigns to connections (ip_local_port_range), and enough
// for all of them.
const (
	lastPorts = 0x8000
	firstPort = 0x1000
)

// IP protocols (IANA's numbers).
const (
	TCP = 6
	UDP = 17 // its connections have no end
)

// Services are what all Services have in common.
type Services struct {
	// CIDRs are the ranges of ClusterIPs.
	CIDRs []netip.Prefix
	// HighPorts are endpoint ports from 32768 on.
	HighPorts []Port
}

// Equal reports whether s and t are the same, in the same order.
func (s Services) Equal(t Services) bool {
	return slices.Equal(s.CIDRs, t.CIDRs) && slices.Equal(s.HighPorts, t.HighPorts)
}

// Port is a port of a protocol.
type Port struct {
	Protocol uint8 // IANA's number
	Port     uint16
}

// High reports whether replies from p need their own flow.
func (p Port) High() bool { return p.Port >= lastPorts }

// Zones returns the zones in which destinations are translated.
func Zones(pods []tables.Pod) []uint16 {
	out := []uint16{zoneRouted}
	for _, p := range pods {
		if p.Bridged {
			out = append(out, uint16(zones(p)))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// AllZones returns those and the zones in which clients' ports are moved.
func AllZones(pods []tables.Pod) []uint16 {
	first := Zones(pods)
	out := slices.Clone(first)
	for _, zone := range first {
		out = append(out, zone+zonePorts)
	}
	slices.Sort(out)
	return out
}

// Timeouts returns how many seconds connections stay in the zones, by state: an ended one, which keeps its port
// meanwhile, no longer than a late packet may arrive. With Open vSwitch's defaults, up to 45 s, or the kernel's, up to
// 120 s, a client that opens more than 640 or 240 connections a second to one endpoint would run out of ports.
func Timeouts() map[string]int { return map[string]int{"tcp_time_wait": 5, "tcp_close": 5} }

// Translated reports whether Open vSwitch translates connections of an IP protocol. The host handles all others.
func Translated(protocol uint8) bool { return protocol == TCP || protocol == UDP }

// pair is a pair of zones.
type pair uint16

// zones returns the zones of a pod's connections.
func zones(p tables.Pod) pair {
	if !p.Bridged {
		return zoneRouted
	}
	return zoneSegments + pair(p.VLAN)
}

// through sends a packet through both zones: known connections are translated.
func (p pair) through(table uint8, request bool) []openflow.Action {
	first, second := uint16(p), uint16(p+zonePorts)
	if !request {
		first, second = second, first
	}
	known := openflow.NAT{Kind: openflow.NATApply}
	return []openflow.Action{openflow.SetStage(openflow.Seen), openflow.SetZone(uint16(p)),
		openflow.Conntrack{Zone: first, Table: openflow.NoTable, NAT: known},
		openflow.Conntrack{Zone: second, Table: table, NAT: known}}
}

// family is what the flows of one IP family need.
type family struct {
	Services
	view tables.View
	ipv4 bool
	out  []openflow.Flow
}

// Flows returns the flows that all Services share; none without the gateway port, which leads to the host. As with
// tables.Pipeline, the order of what is in v does not matter, and of two flows with the same match only the first is
// returned.
func Flows(v tables.View, s Services) []openflow.Flow {
	if v.Gateway.Port == 0 || v.Gateway.MAC == (api.MAC{}) {
		return nil
	}
	v = v.Normalised()
	var out []openflow.Flow
	for _, ipv4 := range []bool{true, false} {
		f := family{Services: s, view: v, ipv4: ipv4}
		is := func(p netip.Prefix) bool { return p.Addr().Is4() != ipv4 }
		if f.CIDRs = slices.DeleteFunc(slices.Clone(s.CIDRs), is); len(f.CIDRs) == 0 {
			continue
		}
		f.service()
		f.requests()
		f.answers()
		f.commits()
		f.hairpins()
		out = append(out, f.out...)
	}
	return tables.FirstOfEach(out)
}

func (f *family) add(table uint8, priority uint16, m openflow.Match, actions ...openflow.Action) {
	if m.EtherType = openflow.IPv6; f.ipv4 {
		m.EtherType = openflow.IPv4
	}
	f.out = append(f.out, openflow.Flow{Kind: openflow.KindService, Table: table, Priority: priority, Match: m,
		Actions: actions})
}

// own returns the node's address that a client sees if it is its own endpoint.
func (f *family) own() (netip.Addr, bool) {
	for _, a := range slices.Concat(f.view.Gateway.Addrs, f.view.NodeAddrs) {
		if a.Is4() == f.ipv4 {
			return a, true
		}
	}
	return netip.Addr{}, false
}

func ctState(set, unset uint16) openflow.Bits { return openflow.Bits{Value: set, Mask: set | unset} }

func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// service adds the flows for packets to ClusterIPs after conntrack.
func (f *family) service() {
	g := f.view.Gateway
	toHost := []openflow.Action{openflow.SetEthDst(g.MAC), openflow.Output(g.Port)}
	known, fresh := ctState(openflow.CTTracked, openflow.CTNew), ctState(openflow.CTTracked|openflow.CTNew, 0)
	if own, ok := f.own(); ok {
		f.add(openflow.TableService, serviceHairpin, openflow.Match{CTState: known, Src: host(own)},
			openflow.Goto(TableHairpin))
	}
	f.add(openflow.TableService, serviceKnown, openflow.Match{CTState: known}, openflow.Goto(openflow.TableForward))
	// Fragments of one packet could go to different endpoints: only the first has ports.
	f.add(openflow.TableService, serviceFragment, openflow.Match{CTState: fresh, Fragment: true}, toHost...)
	f.add(openflow.TableService, serviceHost, openflow.Match{}, toHost...)
}

// segment is a segment of bridged pods, with its zones.
type segment struct {
	openflow.Segment
	zones pair
}

// segments returns the segments of bridged pods, sorted.
func (f *family) segments() []segment {
	var out []segment
	for _, p := range f.view.Pods {
		if p.Bridged {
			out = append(out, segment{openflow.SegmentOf(p.VLAN), zones(p)})
		}
	}
	slices.SortFunc(out, func(a, b segment) int { return cmp.Compare(a.Segment, b.Segment) })
	return slices.Compact(out)
}

func (f *family) requests() {
	for _, cidr := range f.CIDRs {
		f.add(openflow.TableForward, request, openflow.Match{Source: openflow.FromPod, Stage: openflow.Untouched, Dst: cidr},
			pair(zoneRouted).through(openflow.TableService, true)...)
		for _, s := range f.segments() {
			f.add(openflow.TableForward, bridgedRequest, openflow.Match{Source: openflow.FromBridged, Segment: s.Segment,
				Stage: openflow.Untouched, Dst: cidr}, s.zones.through(openflow.TableService, true)...)
		}
	}
}

func (f *family) answers() {
	for _, cidr := range f.view.Gateway.PodCIDRs {
		if cidr.Addr().Is4() != f.ipv4 {
			continue
		}
		// Packets from bridged pods never reach flows of this priority.
		f.answered(answer, openflow.Match{Dst: cidr}, zoneRouted)
		if s := f.segments(); len(s) > 0 && s[0].Segment == openflow.SegmentOf(0) {
			f.answered(nearAnswer, openflow.Match{Source: openflow.FromBridged, Segment: openflow.SegmentOf(0),
				Dst: cidr}, zoneRouted)
		}
	}
	for _, s := range f.segments() {
		for _, from := range []openflow.Source{openflow.FromBridged, openflow.FromUplink} {
			f.answered(bridgedAnswer, openflow.Match{Source: from, Segment: s.Segment}, s.zones)
		}
	}
	for _, p := range f.view.Pods {
		for _, a := range p.Addrs {
			if !p.Bridged || a.Is4() != f.ipv4 {
				continue
			}
			f.answered(answer, openflow.Match{Source: openflow.FromGateway, Dst: host(a)}, zones(p))
			// A routed pod's reply to a VLAN passes the host first, and is intercepted after it.
			if p.VLAN == 0 {
				f.answered(answer, openflow.Match{Source: openflow.FromPod, Dst: host(a)}, zones(p))
			}
		}
	}
}

// answered adds the flows that find replies among the packets of m.
func (f *family) answered(priority uint16, m openflow.Match, zone pair) {
	back := zone.through(openflow.TableForward, false)
	m.Stage = openflow.Untouched
	f.lowPorts(m, func(m openflow.Match) { f.add(openflow.TableForward, priority, m, back...) })
	fragment := m
	fragment.Fragment = true
	f.add(openflow.TableForward, priority, fragment, back...)
	if f.ipv4 { // unreachable, time exceeded, parameter problem (RFC 792)
		for _, kind := range []uint8{3, 11, 12} {
			failed := m
			failed.Protocol, failed.ICMP = 1+1, kind
			f.add(openflow.TableForward, priority, failed, back...)
		}
		return
	}
	for _, kind := range []uint8{1, 2, 3, 4} { // and packet too big (RFC 4443)
		failed := m
		failed.ICMPv6 = 1 + kind
		f.add(openflow.TableForward, priority, failed, back...)
	}
}

// lowPorts calls add for each match of replies: from low ports, or a high port that an endpoint has, to the ports to
// which clients are moved.
func (f *family) lowPorts(m openflow.Match, add func(openflow.Match)) {
	for _, protocol := range []uint8{TCP, UDP} {
		m.Protocol = 1 + uint16(protocol)
		sources := []openflow.Bits{openflow.PortsBelow(lastPorts)}
		for _, p := range f.HighPorts {
			if p.Protocol == protocol {
				sources = append(sources, openflow.Port(p.Port))
			}
		}
		for _, m.SrcPort = range sources {
			for bit := uint16(firstPort); bit < lastPorts; bit <<= 1 {
				m.DstPort = openflow.Bits{Value: bit, Mask: -bit}
				add(m)
			}
		}
	}
}

// commits moves the ports of clients, with a flow for each client: conntrack cannot be given a port without an address.
func (f *family) commits() {
	own, known := f.own()
	for _, p := range f.view.Pods {
		zone := zones(p)
		m := openflow.Match{Source: openflow.FromPod}
		if p.Bridged {
			m.Source, m.Segment = openflow.FromBridged, openflow.SegmentOf(p.VLAN)
		}
		for _, a := range p.Addrs {
			if p.Port == 0 || a.Is4() != f.ipv4 {
				continue
			}
			moved := func(to netip.Addr, table uint8) openflow.Action {
				return openflow.Conntrack{Commit: true, Zone: uint16(zone + zonePorts), Table: table,
					NAT: openflow.NAT{Kind: openflow.NATSrc, Addr: to, First: firstPort, Last: lastPorts - 1}}
			}
			m.Src, m.Dst = host(a), netip.Prefix{}
			f.add(TableCommit, 100, m, moved(a, openflow.TableForward))
			if m.Dst = host(a); known {
				f.add(TableCommit, 200, m, moved(own, TableHairpin))
			}
		}
	}
}

// hairpins adds the flows for clients that are their own endpoints: they would not accept a packet from themselves.
func (f *family) hairpins() {
	f.add(TableHairpin, 0, openflow.Match{}, openflow.Move("eth_src", "eth_dst"), openflow.SetEthSrc(f.view.Gateway.MAC),
		openflow.OutputInPort)
	answered := ctState(openflow.CTTracked|openflow.CTEstablished|openflow.CTReply, 0)
	for _, cidr := range f.CIDRs {
		f.add(TableHairpinAnswer, 100, openflow.Match{CTState: answered, Src: cidr}, openflow.Goto(TableHairpin))
	}
	f.add(TableHairpinAnswer, 0, openflow.Match{}, openflow.Resubmit(openflow.TableForward))
	own, known := f.own()
	if !known {
		return
	}
	from := func(priority uint16, m openflow.Match, zone pair) {
		m.Stage, m.Dst = openflow.Untouched, host(own)
		f.lowPorts(m, func(m openflow.Match) {
			f.add(openflow.TableForward, priority, m, zone.through(TableHairpinAnswer, false)...)
		})
	}
	from(hairpin, openflow.Match{Source: openflow.FromPod}, zoneRouted)
	for _, s := range f.segments() {
		from(bridgedHairpin, openflow.Match{Source: openflow.FromBridged, Segment: s.Segment}, s.zones)
	}
}

// MostAffinity is the longest time for which a client without new connections keeps its endpoint: Open vSwitch's
// maximum timeout.
const MostAffinity = 0xffff * time.Second

// Unit returns the flows and buckets of one port of a Service. Without endpoints it has no flows: the host rejects.
// With affinity, a client keeps its endpoint until it has opened no connection for that time, at most MostAffinity.
func Unit(id uint32, to netip.AddrPort, protocol uint8, endpoints []netip.AddrPort,
	affinity time.Duration) openflow.Unit {
	if len(endpoints) == 0 {
		return openflow.Unit{}
	}
	m := openflow.Match{EtherType: openflow.IPv6, Protocol: 1 + uint16(protocol), Dst: host(to.Addr()),
		DstPort: openflow.Port(to.Port()), CTState: ctState(openflow.CTTracked|openflow.CTNew, 0)}
	if to.Addr().Is4() {
		m.EtherType = openflow.IPv4
	}
	if protocol == TCP { // a connection that the host has translated continues there
		m.TCPFlags = openflow.Bits{Value: openflow.TCPSyn, Mask: openflow.TCPSyn | openflow.TCPAck}
	}
	flow := func(table uint8, m openflow.Match, actions ...openflow.Action) openflow.Flow {
		return openflow.Flow{Kind: openflow.KindService, Table: table, Priority: openflow.UnitPriority, Match: m,
			Actions: actions}
	}
	if len(endpoints) == 1 && affinity == 0 { // a group would cost a megaflow for each connection hash
		return openflow.Unit{Flows: []openflow.Flow{flow(openflow.TableService, m, chosen(endpoints[0]))}}
	}
	u := openflow.Unit{Flows: []openflow.Flow{flow(openflow.TableService, m, openflow.ToGroup(id))}}
	// A learned flow keeps its original timeout. So it matches only packets that carry the same timeout, in the register
	// to which it then writes the endpoint.
	timeout := uint16(min(affinity, MostAffinity) / time.Second)
	learn := openflow.Learn{Table: openflow.TableAffinity, Priority: openflow.UnitPriority + 1, Cookie: learned,
		Idle: timeout, Given: uint32(timeout), IPv6: to.Addr().Is6(), Protocol: protocol}
	if affinity > 0 {
		any := flow(openflow.TableEndpoint, m, openflow.ToGroup(id))
		any.Priority-- // the client's former endpoint is no longer one, or it had none
		u.Hash = openflow.Hash{IPv6: learn.IPv6, Protocol: protocol}
		u.Flows = []openflow.Flow{flow(openflow.TableService, m, openflow.SetEndpoint(learn.Given),
			openflow.Resubmit(openflow.TableAffinity), openflow.Resubmit(openflow.TableEndpoint)), any}
	}
	u.Buckets = make([]openflow.Bucket, 0, min(len(endpoints), openflow.MaxBuckets))
	for _, e := range endpoints[:cap(u.Buckets)] {
		bucket := openflow.Bucket{ID: bucketID(u.Buckets, firstID(e, protocol))}
		if affinity > 0 {
			bucket.Again = openflow.TableEndpoint
			m.Endpoint, learn.Value = bucket.ID, bucket.ID
			u.Flows = append(u.Flows, flow(openflow.TableEndpoint, m, learn, chosen(e)))
		} else {
			bucket.Action = openflow.BucketAction(chosen(e))
		}
		u.Buckets = append(u.Buckets, bucket)
	}
	slices.SortFunc(u.Buckets, func(a, b openflow.Bucket) int { return cmp.Compare(a.ID, b.ID) })
	return u
}

// bucketID returns the ID for another bucket, as IDs does: 0 and the IDs of others are not used.
func bucketID(others []openflow.Bucket, id uint32) uint32 {
	for id == 0 || slices.ContainsFunc(others, func(b openflow.Bucket) bool { return b.ID == id }) {
		id = (id + 1) & 0x7fffffff
	}
	return id
}

// chosen sends a new connection to an endpoint.
func chosen(e netip.AddrPort) openflow.Conntrack {
	return openflow.Conntrack{Commit: true, ZoneReg: openflow.RegisterZone, Table: TableCommit,
		NAT: openflow.NAT{Kind: openflow.NATDst, Addr: e.Addr(), First: e.Port(), Last: e.Port()}}
}
