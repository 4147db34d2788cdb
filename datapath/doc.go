// Package datapath holds no code. Its subpackages set up everything on a node that is not OpenFlow: ovsdb, link, route
// and nat. Each observes what is there, compares it with a value called Desired, and applies the difference. Three
// change nothing: wire probes and announces on the network, capture reads packets, vswitchd queries the process
// ovs-vswitchd. One, uplink, has a journal: it moves the host's configuration, and what it has moved cannot be
// observed.
//
// None of them remembers what it did. A process that starts without state, after a crash at any point, must tell from
// what it observes which resources are Fairlead's. This table says how; a new kind of resource gets its row here before
// its code.
//
//	resource            Fairlead's if                                              package
//	bridge              external_ids:fairlead=bridge, or one of its ports is ours  ovsdb
//	flow-restore-wait   other_config of the Open_vSwitch row, if it is "True";     ovsdb
//	                    external_ids:fairlead-restored beside it
//	gateway port        Port with external_ids:fairlead=gateway                    ovsdb
//	tunnel port         Port with external_ids:fairlead=tunnel                     ovsdb
//	pod port            Port with external_ids:fairlead=pod; fairlead-* is the     ovsdb
//	                    record of the attachment, and the only one on the node; with
//	                    external_ids:fairlead=retired it has no owner, and is removed
//	conntrack timeouts  CT_Zone with external_ids:fairlead=conntrack, and the          ovsdb
//	                    Datapath if that has it
//	pod veth            veth on the node, name "fl" + 13 hex digits, interface     link
//	                    group 26220 (0x666c), or 26226 (0x6672) when it is retired and
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
//	                    nothing on the NIC is ours
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
// Not Fairlead's, though it changes them: ip_forward and IPv6 forwarding, which are only ever enabled, and accept_ra,
// which becomes 2 where it was 1 when IPv6 forwarding is enabled (package route). Nothing reverts these.
//
// Everything acts on the network namespace of the calling thread, and on the database at the configured path.
package datapath
