// Package datapath holds no code. Its subpackages put in place everything on a
// node that is not OpenFlow: ovsdb, link, route and nat. Each observes what is
// there, compares it with a value called Desired, and does the difference.
// Three change nothing: wire asks and announces on the network, capture reads
// packets, vswitchd knows the process ovs-vswitchd. One, uplink, has a journal: it moves what is the
// host's, and what it has moved can't be seen.
//
// None of them remembers what it did. A process that starts with no memory,
// after a crash in the middle of anything, must know from what it sees what
// belongs to Fairlead. This table says how; a new kind of resource gets its
// row here before its code.
//
//	resource            ours if                                                    package
//	bridge              external_ids:fairlead=bridge, or a port of ours is on it   ovsdb
//	flow-restore-wait   other_config of the Open_vSwitch row, if it is "True";     ovsdb
//	                    external_ids:fairlead-restored beside it
//	gateway port        Port with external_ids:fairlead=gateway                    ovsdb
//	tunnel port         Port with external_ids:fairlead=tunnel                     ovsdb
//	pod port            Port with external_ids:fairlead=pod; fairlead-* is the     ovsdb
//	                    record of the attachment, and the only one on the node; with
//	                    external_ids:fairlead=retired it is nobody's, and is removed
//	conntrack timeouts  CT_Zone with external_ids:fairlead=conntrack, and the          ovsdb
//	                    Datapath if that bears it
//	pod veth            veth on the node, name "fl" + 13 hex digits, interface     link
//	                    group 26220 (0x666c), or 26226 (0x6672) when it is nobody's and
//	                    is removed; the pod's end goes with it
//	netns               /run/netns/fairlead-reach, with the pod of container ID        link
//	                    "fairlead-reach" in it
//	gateway device      the gateway port's device, an internal port of Open        link
//	                    vSwitch: its addresses, MTU, sysctls, all of them
//	peer routes         main table, protocol 102 (0x66)                            route
//	neighbours          permanent entries on the gateway device                    route
//	bridge br-uplink    external_ids:fairlead=uplink; its ports and its device     uplink/rows
//	host's addresses    on br-uplink: what the journal has, which is read at the   uplink
//	and routes there    start of every process, or all of them if that is damaged;
//	                    on the NIC nothing is ours
//	nft table           netdev fairlead-uplink                                     uplink
//	eBPF programs       pinned in the journal's directory below /sys/fs/bpf; named uplink/steer
//	                    fl_ + digest; tc filters "fairlead/" + hook, and the qdisc
//	                    clsact where a directory qdisc-IFINDEX is beside the pins
//	NIC's promisc flag  the journal says that the host had not set it              uplink
//	iptables chains     FAIRLEAD-POSTROUTING (nat, mangle), FAIRLEAD-FORWARD       nat
//	                    (filter, mangle), FAIRLEAD-INPUT (filter), FAIRLEAD-OUTPUT
//	                    (filter, raw), FAIRLEAD-PREROUTING (raw), iptables and
//	                    ip6tables, and the jumps to them
//
// Not ours, though we change them: ip_forward and IPv6 forwarding, which are
// only ever switched on, and accept_ra, which becomes 2 where it was 1 when
// IPv6 forwarding is switched on (package route). Nothing undoes these.
//
// Everything acts on the network namespace of the calling thread, and finds
// the database where it is told.
package datapath
