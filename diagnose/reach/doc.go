// Package reach decides which paths between pods on different nodes work, in which direction, and why one does not. It
// is pure: package agent/reach sends, receives and collects the evidence.
//
// Every node has an end: a network namespace that is attached like a pod, with the last usable address of each podCIDR
// (End), which every other node can compute. Ends send each other UDP packets, from changing ports, with the checksum
// left to the device, and now and then one of the pods' full size. Nothing is ever sent in reply to a packet: each end
// sends at its own pace, and each packet reports what its sender has received from the end that it goes to (Packet). So
// a node that hears another knows both directions, no end can be made to send more than it does anyway, and a path that
// fails in one direction is reported by the node that sends there. Where nothing is heard at all, only the other
// direction is unknown.
//
// Which nodes a node sends to follows from the nodes' names and the clock, and is mutual (Peers): neighbours on a ring
// of hashes, and one partner that changes. Where two nodes' views differ, because one does not yet know of a Node, an
// end also sends in return to an end that sends to it, as long as that one does so of its own accord.
//
// A dead agent is not a broken path: the kernel of its node's end refuses the packets, which shows that they arrive.
// Nor is a dead node: its own address does not answer, and its Node in the API server is not ready.
package reach
