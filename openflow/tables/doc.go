// Package tables has the flows of the integration bridge br-int, which say what Open vSwitch does with a pod's packet,
// except those of Services.
//
// [Pipeline] is a pure function from a [View] (ports, pods, peers) to flows.
//
// # The journey of a packet
//
// Five tables with fixed numbers, of which a packet traverses two, or three if it leaves by the underlay. Each table,
// except those of Services, is one file here and ends in a flow that drops and counts.
//
//	0 Classify   source validation (anti-spoofing)            t0_classify.go
//	1 Resolve    ARP and ND: to the one port that is asked    t1_resolve.go
//	2 Service    ClusterIPs, with services: ovs              package clusterip
//	3 Forward    destination -> port, Ethernet header, TTL    t3_forward.go, t3_bridged.go
//	4 Output     onto the underlay, with a VLAN's tag         t4_output.go
//
// reg0 says where the packet came from ([openflow.FromPod] and the like). Classify sets it for IP packets, and for all
// packets of bridged pods and the underlay; Forward reads it where forwarding depends on it. reg1 is the
// [openflow.Segment] of the latter two.
//
// Classify is the only table that validates the source. A pod may send IPv4 and IPv6 from its own MAC and address, and
// ARP, neighbour solicitations and advertisements with these addresses, unfragmented and with valid options. Its IPv6
// link-local address, derived from its MAC, is used for ND only. Router advertisements, redirects, other ethertypes and
// VLAN tags are dropped from any port: nothing on this bridge needs them. A priority tag, which has no VLAN ID, is
// removed first. The gateway port, which is the host itself, is trusted. A packet out of the tunnel is accepted if it
// comes from a peer's endpoint and its source is in that peer's podCIDR. So no node can spoof another's pods, nor can a
// host that cannot send from a node's address. Matching both costs no megaflow: tun_src is part of every megaflow of a
// tunnel port anyway, and the inner source narrows it to one per peer. Neighbour discovery never crosses the tunnel.
//
// Resolve sends ARP and ND to the owner of the address in question, as a unicast frame. Nothing is flooded, so a pod
// never sees others' requests. ND that has passed a router is dropped, and so is ND that the host would route for a
// routed pod: policies do not judge packets in this table. A reply that no pod requested goes to the host, which sends
// requests from any of its addresses, not only the gateway's. A probe of one's own address (ARP probe, duplicate
// address detection) is dropped, so the prober correctly finds the address free.
//
// Forward has four kinds of destination. A local pod or the gateway address: set the Ethernet destination, output. A
// peer's podCIDR: set the tunnel destination, output to the tunnel. An unknown address in the node's own podCIDRs:
// drop, instead of looping between bridge and host. Everything else goes to the host, if a pod sent it. From the tunnel
// only local pods and the gateway address are reachable: a node does not route for its peers. No flow here matches the
// Ethernet destination: the host routes to peers through a neighbour entry with an arbitrary MAC.
//
// # Bridged pods
//
// A routed pod is behind its node, a bridged pod on the underlay: untagged, or in a VLAN. Its segment is everything
// there that it reaches without a router. Traffic of bridged pods and the underlay is separated from all other by reg0
// and reg1, from table 0 on: it matches no flow of routed pods except those described here.
//
// Classify pops the tag of the underlay's frames and drops those of VLANs without a pod. Sources of bridged pods are
// validated like those of routed pods, except that the link-local address may send any packet within the segment.
// Router advertisements and redirects of the underlay are dropped: the pool defines the gateway.
//
// Resolve sends ARP and ND of a segment to the pod there that owns the address, as a unicast frame. A bridged pod's
// requests, replies and announcements for other addresses go out to the underlay; the underlay's own are dropped, as
// nothing is flooded to pods. The bridge itself answers for the node's own IPv4 addresses; for IPv6 the host does, over
// the underlay.
//
// Forward delivers underlay frames by segment and MAC only. A bridged pod's packet to another one of its segment is
// switched by address, also between subnets, bypassing the underlay's router. To the node's addresses, to Services and
// to what else the node routes for pods ([View].ViaHost) it goes through the gateway port, whatever the VLAN, so the
// node sees both directions of a connection on one interface. An untagged pod and a routed pod of the node reach each
// other directly, except for packets larger than the routed one's MTU: the host gets those, and reports the MTU.
// Everything else leaves by the underlay, including multicast and broadcast, without which snooping switches would not
// learn the pod.
//
// Output adds the tag. Only frames of bridged pods reach it, each with its pod's MAC as source: from a frame with the
// node's MAC the switches, first of all the uplink's own bridge, would learn that the node is behind br-int, and cut it
// off. VRRP, HSRP and GLBP are dropped: a pod must not take over the underlay's gateway.
//
// # TTL and Ethernet addresses
//
// Each router on the path decrements once. Between pods of one node, and between a bridged pod and the underlay, a
// packet is switched, and one from the gateway has been routed by the host's kernel: no change. From a pod into the
// tunnel the source node is the router: it decrements and writes its gateway's MAC as source. The node at the other end
// only delivers: it writes its own gateway's MAC as source, so pods see routed packets come from their gateway, and
// keeps the TTL. A packet that arrives at the source node with TTL 1 is dropped without an ICMP error (OVS would send
// it to a controller, and there is none), so traceroute shows no first hop.
//
// Output to the ingress port does nothing in OVS. So a pod's packet to itself is dropped, and so is gratuitous ARP.
//
// # Megaflows
//
// No flow matches more than its decision needs, so a megaflow has no ports and no TCP flags. OVS widens IPv4
// destinations to whole routes by default; IPv6 ones only if the table's row in OVSDB says so (Flow_Table, column
// prefixes: nw_src and ipv6_src for table 0, nw_dst and ipv6_dst for table 3). Without it every IPv6 address beyond the
// node gets its own megaflow.
package tables
