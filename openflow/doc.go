// Package openflow holds what Open vSwitch does with a pod's packet: the flows
// of the integration bridge br-int, and the connection that puts them there.
//
// [Pipeline] is a pure function from a [View] (ports, pods, peers) to flows.
// A [Switch] makes the bridge have these flows and no others.
//
// # The journey of a packet
//
// Five tables with fixed numbers, of which a packet visits two, or three if it
// leaves by the underlay. Each table that is in use is one file here and ends in
// a flow that drops and counts.
//
//	0 Classify   who sent it, and may this sender say that?   t0_classify.go
//	1 Resolve    ARP and ND: to the one port that is asked    t1_resolve.go
//	2 Service    reserved: Services and policies, conntrack   (no flows)
//	3 Forward    destination -> port, Ethernet header, TTL    t3_forward.go, t3_bridged.go
//	4 Output     onto the underlay, with a VLAN's tag         t4_output.go
//
// reg0 says where the packet came from ([FromPod], [FromGateway], [FromTunnel],
// [FromBridged], [FromUplink]). Classify fills it in for IP packets, and for all
// of bridged pods and the underlay; Forward reads it where the answer depends on
// it. reg1 is the [Segment] of the latter two.
//
// Classify is the only table that looks at the sender. A pod may send IPv4 and
// IPv6 from its own MAC and address, ARP that names them truthfully, and
// neighbour solicitations and advertisements that do. Its IPv6 link-local
// address, made from its MAC, serves ND and nothing else. Router
// advertisements, redirects, other ethertypes and VLAN tags are dropped, from
// any port: nobody on this bridge needs them. The gateway port, which is the
// host itself, is believed. A packet out of the tunnel is believed if it comes
// from a peer's endpoint and its source is in that peer's podCIDR, so that a
// stranger on the underlay can inject nothing and no node can speak for
// another. Matching both costs no megaflow: tun_src is part of every megaflow
// of a tunnel port anyway, and the inner source narrows it to one per peer.
// Neighbour discovery never crosses the tunnel.
//
// Resolve takes ARP and ND to the owner of the address in question, as a
// unicast frame. Nothing is flooded, so a pod never sees who asks for whom. An
// answer that no pod asked for goes to the host: the host asks under any of
// its addresses, not only under the gateway's. A probe of one's own address
// (ARP probe, duplicate address detection) is dropped, which tells the prober
// that the address is free, as it is.
//
// Forward knows four kinds of destination. A local pod or the gateway address:
// set the Ethernet destination, output. A peer's podCIDR: set the tunnel
// destination, output to the tunnel. An unknown address of our own podCIDRs:
// drop, rather than let it circle between bridge and host. Everything else
// goes to the host, if a pod sent it. From the tunnel only local pods and the
// gateway address can be reached: a node is not a way out for its peers. No
// flow here matches on the Ethernet destination: the host routes to peers
// through a neighbour entry with an arbitrary MAC.
//
// # Bridged pods
//
// A routed pod lives behind its node, a bridged pod on the underlay: untagged, or
// in a VLAN. Its segment is everything there that it reaches without a router.
// What bridged pods and the underlay say is kept apart from everything else by
// reg0 and reg1, from table 0 on: neither ever meets a flow of routed pods but
// those named here.
//
// Classify takes the tag off frames of the underlay and drops those of VLANs in
// which no pod is; the node's own traffic does not come this way. It looks at a
// bridged pod as at a routed one. Only the link-local address serves more: any
// packet that stays in the segment. Router advertisements and redirects of the
// underlay are dropped: the pool says who the router is.
// Nothing IPv6 goes to link-local or multicast addresses in fragments: Open vSwitch
// can't see whether it is neighbour discovery.
//
// Resolve takes ARP and ND of a segment to the pod there that owns the address,
// as a unicast frame. What a bridged pod asks, answers or announces to anybody
// else goes out to the underlay. What the underlay asks of others ends here:
// nothing is flooded to pods. For the node's own IPv4 addresses the bridge
// answers itself; for IPv6 the host does, over the underlay.
//
// Forward delivers frames of the underlay by segment and MAC alone. A bridged
// pod's packet to another one of its segment is switched by address, also between
// subnets, past the underlay's router. To the node's addresses, to Services and
// to what else the node routes for pods ([View].ViaHost) it goes through the
// gateway port, whatever the VLAN, so that the node sees both directions of a
// connection on one interface. An untagged pod and a routed pod of the node reach
// each other straight. Everything else leaves by the underlay, multicast and
// broadcast included, without which snooping switches would not know the pod.
//
// Output adds the tag. Only frames of bridged pods come to it, each with its
// pod's MAC as source: a frame with the node's would teach the switches, the
// uplink's own bridge first, that the node is behind br-int, and cut it off.
//
// # TTL and Ethernet addresses
//
// Each router on the way decrements once. Between pods of one node, and between a
// bridged pod and the underlay, a packet is switched, from the gateway the host's kernel has routed it: no change. From
// a pod into the tunnel the source node is the router: it decrements and
// writes its gateway's MAC as source. The node at the other end only delivers:
// it writes its own gateway's MAC as source, so that pods see routed packets
// come from their gateway, and leaves the TTL. A packet that arrives at the
// source node with TTL 1 is dropped without an ICMP answer (OVS would send it
// to a controller, and there is none), so traceroute shows no first hop.
//
// Sending a packet back to the port that it came from does nothing in OVS. That
// is what becomes of a pod's packet to itself, and of gratuitous ARP.
//
// # Megaflows
//
// No flow matches what its decision does not need, so a megaflow has no ports
// and no TCP flags. OVS widens destinations to whole routes for IPv4 by itself;
// for IPv6 it does where the table's row in OVSDB says so (Flow_Table, column
// prefixes: nw_src and ipv6_src for table 0, nw_dst and ipv6_dst for table 3).
// Without it every IPv6 address beyond the node takes a megaflow of its own.
//
// # What is ours
//
// br-int belongs to Fairlead alone, so every flow on it that Pipeline did not
// ask for is removed. A flow says what it is by its cookie:
//
//	63      48 47   40 39   32 31                      0
//	[  "fl"  ] [ kind ] [  0  ] [ hash of match, actions ]
//
// The kind (base, gateway, pod, peer, uplink) is for people who read a dump. The hash
// tells a dump's reader that a flow was altered, but not surely, as a third
// party's mod-flows keeps the cookie; a resync compares the actions.
package openflow
