// Package wire speaks ARP and neighbour discovery on the underlay: it asks
// whether somebody uses an address before a pod gets it (RFC 5227 section 2.1,
// RFC 4862 section 5.4), and tells everybody where the pod is when it has it
// (RFC 5227 section 2.3, RFC 4861 section 7.2.6).
//
// It uses packet sockets (packet(7)). One on the NIC sees a frame before Open
// vSwitch takes it, on both datapaths, and what it sends passes no bridge, so
// nothing can be learned from it. Nothing stays behind: a socket ends with the
// process, and nothing on the node is ours.
package wire
