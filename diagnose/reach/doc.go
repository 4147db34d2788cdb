// Package reach decides which pods' paths between nodes work, in which direction, and why one does not. It is pure:
// package agent/reach sends, receives and collects the evidence.
//
// Every node has an end: a network namespace that is attached as a pod is, with the last usable address of each podCIDR
// (End), which every other node can compute. Ends send each other UDP packets, from changing ports, with the checksum
// left to the device, and now and then one of the pods' full size. Nothing is ever sent in answer to a packet: each end
// sends at its own pace, and each packet says what its sender has heard of the end that it goes to (Packet). So a node
// that hears another knows both directions, nobody can be made to send more than he does anyway, and a path that fails
// in one direction is told by the node that sends there. Where nothing is heard at all, only the other direction is
// unknown.
//
// Whom a node sends to follows from the names of the nodes and the clock, and is mutual (Peers): neighbours on a ring
// of hashes, and one partner that changes. Where the two differ, because one knows of a Node that the other does not
// yet, an end also sends to who asks it, as long as that one asks of its own accord.
//
// An agent that is dead is not a broken path: the kernel of its node's end refuses the packets, which shows that they
// arrive. A node that is dead is none either: its own address does not answer, and the API server has its Node as not
// ready.
package reach
