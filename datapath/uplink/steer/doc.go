// Package steer shares a NIC between the host and the pods of a bridge, without making it a port of that bridge. Small
// eBPF programs sort its frames by MAC address and VLAN. Frames other than bridged pods' never leave the kernel's own
// path, and do not depend on Open vSwitch or on any process.
//
// Three programs, at the tc hooks of two devices: the NIC, and the port, a device behind which the bridge is. The host
// has no addresses on the port.
//
//	NIC ingress   from the underlay    a local pod's MAC: to the port. Group: to the port as well. Else: to the host
//	NIC egress    from the host        a local pod's MAC: to the port. Group: to the port as well. Else: to the underlay
//	port ingress  from the pods        a MAC of the host: to NIC ingress. Group: there as well. Else: to the underlay.
//	                                   What does not come from a local pod is dropped
//
// "To the port" means transmitting on it, so that the bridge receives the frame. Group is broadcast and multicast,
// except 01:80:c2:00:00:xx, which is between link neighbours (LLDP, LACP, STP): those stay the host's. So do group
// frames of a VLAN without a local pod.
//
// A frame that a program has handed to the NIC traverses the NIC's own programs next. These recognise it by its source,
// a local pod's: such a frame is never handed to the port, so none loops, and no packet mark (skb->mark) is needed,
// which kube-proxy and others use. The source decides at the port as well: a bridge that sent the underlay's or the
// host's own frames back would cut the host off.
//
// The hooks are tcx where the kernel has it (6.6), with these programs first, and on older kernels filters of the qdisc
// clsact, of preference 1. Other frames continue to what others have attached there (TCX_NEXT).
//
// # What is ours
//
// The directory that Config names, in a file system of type bpf: the maps "macs" and "count", and the tcx links
// "nic-ingress", "nic-egress" and "port-ingress" or, with filters, "qdisc-IFINDEX" for a qdisc that this package
// created. Filters are recognised by their names, "fairlead/" and the hook's. Pins outlive the process. A program's
// name contains a digest of what it does. So another version of the programs, or another NIC or port, is detected, and
// programs are replaced, each atomically.
//
// All functions act on the network namespace of the calling thread.
package steer
