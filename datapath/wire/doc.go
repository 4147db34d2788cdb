// Package wire sends ARP and neighbour discovery on the underlay: it probes whether an address is in use before a pod
// gets it (RFC 5227 section 2.1, RFC 4862 section 5.4), and announces the pod's MAC when it has it (RFC 5227 section
// 2.3, RFC 4861 section 7.2.6).
//
// It uses packet sockets (packet(7)). One on the NIC sees a frame before Open vSwitch receives it, on both datapaths,
// and what it sends passes no bridge, so no bridge learns from it. It leaves nothing behind: a socket is closed with
// the process, and nothing on the node is Fairlead's.
package wire
