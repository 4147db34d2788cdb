// Package link creates what the kernel needs besides Open vSwitch: the veth pair of each pod, and the addresses and
// parameters of the gateway, the node's own port on the bridge. It also finds the transport interface.
//
// Fairlead's are: a veth in the node's network namespace whose name begins with "fl" and whose group (IFLA_GROUP) is
// Group. Both are set in the request that creates it, so a process killed at any instant leaves either no veth or one
// recognised as Fairlead's. One that only waits to be removed has the group Retired; every interface in that group is
// removed. The pod's end has no mark; it is deleted with the host end. ovs-vswitchd creates the gateway; it is
// Fairlead's by its name in the configuration, with everything on it.
//
// All functions act on the network namespace of the calling thread, which is
// the node's. Pod namespaces are entered on threads of their own.
package link
