// Package link makes what the kernel needs beside Open vSwitch: the veth of
// each pod, and addresses and parameters of the gateway, the node's own port
// on the bridge. It also finds the interface that carries tunnel traffic.
//
// What is ours: a veth in the node's network namespace whose name begins with
// "fl" and whose group (IFLA_GROUP) is Group. Both are set in the request that
// makes it, so a process that is killed at any instant leaves either no veth
// or one that is known as ours. One that only waits to be removed has the group
// Retired; whatever has that group is removed. The pod's end has no mark; it goes with the
// host's end. The gateway is made by ovs-vswitchd and is ours by its name in
// the configuration; everything on it is ours.
//
// All functions act on the network namespace of the calling thread, which is
// the node's. Pod namespaces are entered on threads of their own.
package link
