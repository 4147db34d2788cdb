// Package hoststate reads what the host has on a network interface, and moves it to another interface and back.
//
// Addresses, routes, rules and neighbours are kept as the kernel reports them over rtnetlink(7), attribute by
// attribute. So exactly what was there is restored, even attributes unknown to this package. An object is only valid in
// the boot in which it was read.
//
// Nothing here is Fairlead's: the objects belong to the host. What Fairlead has moved is recorded in the journal of
// package uplink. All functions act on the network namespace of the calling thread.
package hoststate
