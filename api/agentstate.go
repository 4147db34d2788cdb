package api

import "net/netip"

// AgentState is what a running agent says of its node, at /state.
type AgentState struct {
	Version string `json:"version"`
	Node    string `json:"node"`
	// NotReady says why no pod could be added now; empty: the node serves pods.
	NotReady string `json:"notReady,omitempty"`
	// Degraded says what does not work though pods are served.
	Degraded string         `json:"degraded,omitempty"`
	PodCIDRs []netip.Prefix `json:"podCIDRs,omitempty"`
	// PodMTU and BridgedMTU are the MTUs of routed and bridged pods, in bytes; 0: not known yet.
	PodMTU     int `json:"podMTU,omitempty"`
	BridgedMTU int `json:"bridgedMTU,omitempty"`
	// Overhead is what the tunnel adds to a packet, in bytes; 0: there is no tunnel.
	Overhead int `json:"overhead,omitempty"`
	// Transport is the interface that carries traffic to other nodes, and its MTU.
	Transport    string `json:"transport,omitempty"`
	TransportMTU int    `json:"transportMTU,omitempty"`
	// Peers are where packets to other nodes go.
	Peers []AgentPeer `json:"peers,omitempty"`
	Pods  int         `json:"pods"`
	// Bridging: pods may be bridged here. NoUplink says why they can't be.
	Bridging bool   `json:"bridging"`
	NoUplink string `json:"noUplink,omitempty"`
	// Flows are what the switch should have, in the syntax of "ovs-ofctl dump-flows"; nil: not known yet.
	Flows []string `json:"flows,omitempty"`
}

// AgentPeer is another node.
type AgentPeer struct {
	Node    string     `json:"node"`
	Address netip.Addr `json:"address"`
}
