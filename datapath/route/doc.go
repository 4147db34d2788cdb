// Package route keeps the node's routes to the pods of other nodes and the
// kernel's switches for forwarding.
//
// Every route goes to the bridge by way of the gateway with one virtual next
// hop, behind which the flows choose the node: the host's own routing table
// stays the same whether the peers are reached by tunnel or not, and no
// neighbour has to be resolved. The next hop is no address of anything; it is
// on link by decree and has one permanent neighbour entry.
//
// What is ours: routes of the main table with protocol Protocol, whatever else
// they say, and permanent neighbours on the gateway, which is ours as a whole.
// Routes of other protocols are never touched.
//
// All functions act on the network namespace of the calling thread.
package route
