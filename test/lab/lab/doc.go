// Package lab runs a cluster's worth of nodes on one machine: each node has its own namespaces, Open vSwitch, agent
// and default paths, all are on one underlay network, and a runner makes and removes pods as kubelet and a container
// runtime would. The command bin/lab is a thin layer over it; tests use it directly.
//
//	    outside 203.0.113.1, 2001:db8::1
//	       | eth0 192.168.77.1
//	[underlay: bridge br0]
//	  | eth0               | eth0
//	node1 192.168.77.11  node2 192.168.77.12 ...     pods 10.77.1.0/24, 10.77.2.0/24 ...
//
// In mode Bridge the underlay is a switch with VLANs, and the host outside is behind a router:
//
//	outside 203.0.113.1, 2001:db8::1
//	   |
//	router   eth0 192.168.77.1  eth10 192.168.110.1  eth20 192.168.120.1
//	          | untagged         | VLAN 10             | VLAN 20
//	[switch: Open vSwitch, bridge br0]
//	          | eth0, trunk: untagged, 10, 20
//	       node1 192.168.77.11 ...
//
// Everything of a lab is inside its hosts' namespaces (package host) or in its directory, a tmpfs of its own. Nothing
// of it is in the machine's network, so all labs have the same addresses and any number of them can run side by side.
// What is in the directory tells what is ours: processes are found by the namespaces that are pinned there, the
// runner by its record and its command line.
package lab
