// Package route keeps the node's routes to the pods of other nodes and to its
// own bridged pods, and the kernel's switches for forwarding.
//
// The routes to peers behind the tunnel go to the bridge by way of the gateway
// with one virtual next hop, behind which the flows choose the node, so that no
// neighbour has to be resolved. The next hop is no address of anything; it is
// on link by decree and has one permanent neighbour entry.
//
// A peer that is reached without the tunnel has a route over the transport
// interface with the peer's own address as next hop, which the kernel resolves
// as any other. It counts only while that interface is up and has an address of
// the peer's subnet: the kernel removes such routes by itself, the next Apply
// puts them back.
//
// A bridged pod of this node has an address of the underlay, but its packets to
// and from the node take the gateway: a route to it alone and a permanent
// neighbour entry with its MAC. Where rp_filter is 1 that is what lets the
// node hear it.
//
// What is ours: routes of the main table with protocol Protocol, whatever else
// they say, and permanent neighbours on the gateway, which is ours as a whole.
// Routes of other protocols are never touched.
//
// All functions act on the network namespace of the calling thread.
package route
