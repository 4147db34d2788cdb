// Package route maintains the node's routes to pods on other nodes and to its own bridged pods, and the kernel's
// forwarding sysctls.
//
// The routes to peers behind the tunnel lead to the bridge through the gateway with one virtual next hop; the flows
// choose the node, so no neighbour must be resolved. The next hop is not an address of any interface; it is set onlink
// and has one permanent neighbour entry.
//
// A peer reached without the tunnel has a route over the transport interface with the peer's own address as next hop,
// which the kernel resolves like any other. It exists only while that interface is up and has an address in the peer's
// subnet: the kernel removes such routes itself, and the next Apply restores them.
//
// A bridged pod of this node has an underlay address, but its packets to and from the node go through the gateway: it
// has a host route and a permanent neighbour entry with its MAC. With rp_filter 1 the node accepts its packets only
// because of that route.
//
// Fairlead's are: routes of the main table with protocol Protocol, whatever their other attributes, and permanent
// neighbours on the gateway, which is entirely Fairlead's. Routes of other protocols are never touched.
//
// All functions act on the network namespace of the calling thread.
package route
