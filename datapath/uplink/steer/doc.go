// Package steer shares a NIC between the host and the pods of a bridge, without making it a port of that bridge. Small
// eBPF programs sort its frames by MAC address and VLAN. What is no bridged pod's never leaves the kernel's own path,
// and does not depend on Open vSwitch or on any process.
//
// Three programs, at the tc hooks of two devices: the NIC, and the port, a device behind which the bridge is. The host
// has no addresses on the port.
//
//	NIC ingress   from the underlay    a local pod's MAC: to the port. Group: to the port as well. Else: to the host
//	NIC egress    from the host        a local pod's MAC: to the port. Group: to the port as well. Else: to the underlay
//	port ingress  from the pods        a MAC of the host: to NIC ingress. Group: there as well. Else: to the underlay.
//	                                   What does not come from a local pod is dropped
//
// "To the port" is transmission by it, so that the bridge receives the frame. Group is broadcast and multicast, but
// 01:80:c2:00:00:xx, which is between neighbours on a cable (LLDP, LACP, STP): that stays the host's. Group frames of a
// VLAN in which no local pod is stay the host's, too.
//
// A frame that a program has handed to the NIC meets the NIC's own programs next. These know it by its source, which is
// a local pod's: such a frame is never handed to the port, so none circles, and no mark on packets (skb->mark) is
// needed, which belong to kube-proxy and others. The source decides at the port as well: a bridge that sent the
// underlay's or the host's own frames back would cut the host off.
//
// The hooks are tcx where the kernel has it (6.6), where ours come first, and before that filters of the qdisc clsact,
// of preference 1. Frames that are not ours go on to what others have attached there (TCX_NEXT).
//
// # What is ours
//
// The directory that Config names, in a file system of type bpf: the maps "macs" and "count", and the tcx links
// "nic-ingress", "nic-egress" and "port-ingress" or, where filters are used, "qdisc-IFINDEX" of a qdisc that was made
// here. Filters are known by their names, "fairlead/" and the hook's. What is pinned outlives the process. A program's
// name has a digest of what it does. So another version of the programs, or another NIC or port, is seen, and programs
// are replaced, each in one step of the kernel.
//
// All functions act on the network namespace of the calling thread.
package steer
