// Package underlay creates the network between the hosts of a lab: nodes, control plane, and the host outside.
//
//	    outside 203.0.113.1, 2001:db8::1
//	       | eth0 192.168.77.1
//	[underlay: bridge br0]
//	  | eth0               | eth0
//	node1 192.168.77.11  node2 192.168.77.12 ...     pods 10.77.1.0/24, 10.77.2.0/24 ...
//
// In mode Bridge it is a switch with VLANs, and the host outside is behind a router:
//
//	outside 203.0.113.1, 2001:db8::1
//	   |
//	router   eth0 192.168.77.1  eth10 192.168.110.1  eth20 192.168.120.1
//	          | untagged         | VLAN 10             | VLAN 20
//	[switch: Open vSwitch, bridge br0]
//	          | eth0, trunk: untagged, 10, 20
//	       node1 192.168.77.11 ...
//
// All of it is in the namespaces of its hosts (package host) and ends with them.
package underlay

// Mode is how the nodes are on the underlay.
type Mode string

// The modes of a lab: one network to which nodes route for their pods, or a switch with VLANs and agents that bridge
// pods onto them (enableBridgingMode).
const (
	Routed Mode = "routed"
	Bridge Mode = "bridge"
)
