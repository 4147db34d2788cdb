// Package hoststate reads what the host has on a network interface, and moves it to another interface and back.
//
// Addresses, routes, rules and neighbours are kept as the kernel tells them over rtnetlink(7), attribute by attribute.
// So what is put back is what was there, also where nobody here knows what an attribute means. An object is only good
// in the boot in which it was read.
//
// Nothing here is ours: the objects belong to whoever configured the node. What Fairlead has moved is on record in the
// journal of package uplink. All functions act on the network namespace of the calling thread.
package hoststate
