// Package tables says what Open vSwitch does with a pod's packet: the flows of the integration bridge br-int, without
// those of Services.
//
// [Pipeline] is a pure function from a [View] (ports, pods, peers) to flows.
//
// # The journey of a packet
//
// Five tables with fixed numbers, of which a packet visits two, or three if it leaves by the underlay. Each table that
// is in use, but those of Services, is one file here and ends in a flow that drops and counts.
//
//	0 Classify   source validation (anti-spoofing)            t0_classify.go
//	1 Resolve    ARP and ND: to the one port that is asked    t1_resolve.go
//	2 Service    ClusterIPs, with services: ovs              package clusterip
//	3 Forward    destination -> port, Ethernet header, TTL    t3_forward.go, t3_bridged.go
//	4 Output     onto the underlay, with a VLAN's tag         t4_output.go
//
// reg0 says where the packet came from ([openflow.FromPod] and its kin). Classify
// fills it in for IP packets, and for all packets of bridged pods and the underlay; Forward reads it where the answer
// depends on it. reg1 is the [openflow.Segment] of the latter two.
//
// Classify is the only table that validates the source. A pod may send IPv4 and IPv6 from its own MAC and address, and
// ARP, neighbour solicitations and advertisements that name them, whole and with valid options. Its IPv6 link-local
// address, made from its MAC, serves ND and nothing else. Router advertisements, redirects, other ethertypes and VLAN
// tags are dropped from any port: nothing on this bridge needs them. A priority tag, which names no VLAN, is removed
// first. The gateway port, which is the host itself, is trusted. A packet out of the tunnel is accepted if it comes
// from a peer's endpoint and its source is in that peer's podCIDR. So no node can spoof another's pods, and nobody who
// cannot send from a node's address. Matching both costs no megaflow: tun_src is part of every megaflow of a tunnel
// port anyway, and the inner source narrows it to one per peer. Neighbour discovery never crosses the tunnel.
//
// Resolve takes ARP and ND to the owner of the address in question, as a unicast frame. Nothing is flooded, so a pod
// never sees the requests of others. ND that has passed a router is dropped, and what a routed pod would have the host
// route: policies do not judge what comes here. A reply that no pod asked for goes to the host, which asks under any
// of its addresses, not only under the gateway's. A probe of one's own address (ARP probe, duplicate address
// detection) is dropped, which tells the prober that the address is free, as it is.
//
// Forward knows four kinds of destination. A local pod or the gateway address: set the Ethernet destination, output. A
// peer's podCIDR: set the tunnel destination, output to the tunnel. An unknown address of our own podCIDRs: drop,
// rather than loop between bridge and host. Everything else goes to the host, if a pod sent it. From the tunnel only
// local pods and the gateway address can be reached: a node routes nothing onward for its peers. No flow here matches
// on the Ethernet destination: the host routes to peers through a neighbour entry with an arbitrary MAC.
//
// # Bridged pods
//
// A routed pod is behind its node, a bridged pod on the underlay: untagged, or in a VLAN. Its segment is everything
// there that it reaches without a router. Traffic of bridged pods and the underlay is kept apart from all other by
// reg0 and reg1, from table 0 on: it never meets a flow of routed pods but those named here.
//
// Classify pops the tag of the underlay's frames and drops those of VLANs without a pod. Sources of bridged pods are
// validated like those of routed pods, except that the link-local address may send any packet within the segment.
// Router advertisements and redirects of the underlay are dropped: the pool says who the router is.
//
// Resolve takes ARP and ND of a segment to the pod there that owns the address, as a unicast frame. Requests, replies
// and announcements of a bridged pod for other addresses go out to the underlay; the underlay's own are dropped, as
// nothing is flooded to pods. The bridge itself answers for the node's own IPv4 addresses; for IPv6 the host does,
// over the underlay.
//
// Forward delivers frames of the underlay by segment and MAC alone. A bridged pod's packet to another one of its
// segment is switched by address, also between subnets, past the underlay's router. To the node's addresses, to
// Services and to what else the node routes for pods ([View].ViaHost) it goes through the gateway port, whatever the
// VLAN, so that the node sees both directions of a connection on one interface. An untagged pod and a routed pod of
// the node reach each other directly, but for what is larger than the routed one's MTU: the host gets that, and says
// so. Everything else leaves by the underlay, including multicast and broadcast, without which snooping switches would
// not know the pod.
//
// Output adds the tag. Only frames of bridged pods come to it, each with its pod's MAC as source: from a frame with
// the node's MAC the switches, the uplink's own bridge first, would learn that the node is behind br-int, and cut it
// off. VRRP, HSRP and GLBP are dropped: who is the underlay's gateway is not a pod's to say.
//
// # TTL and Ethernet addresses
//
// Each router on the way decrements once. Between pods of one node, and between a bridged pod and the underlay, a
// packet is switched, and one from the gateway has been routed by the host's kernel: no change. From a pod into the
// tunnel the source node is the router: it decrements and writes its gateway's MAC as source. The node at the other
// end only delivers: it writes its own gateway's MAC as source, so that pods see routed packets come from their
// gateway, and leaves the TTL. A packet that arrives at the source node with TTL 1 is dropped without an ICMP error
// (OVS would send it to a controller, and there is none), so traceroute shows no first hop.
//
// Sending a packet back to its ingress port does nothing in OVS. That is what becomes of a pod's packet to itself, and
// of gratuitous ARP.
//
// # Megaflows
//
// No flow matches what its decision does not need, so a megaflow has no ports and no TCP flags. OVS widens destinations
// to whole routes for IPv4 by itself; for IPv6 it does where the table's row in OVSDB says so (Flow_Table, column
// prefixes: nw_src and ipv6_src for table 0, nw_dst and ipv6_dst for table 3). Without it every IPv6 address beyond the
// node takes a megaflow of its own.
package tables
