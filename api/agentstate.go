package api

import (
	"net/netip"
	"time"
)

// AgentState is the state of its node that a running agent serves at /state.
type AgentState struct {
	Version string `json:"version"`
	Node    string `json:"node"`
	// NotReady says why no pod can be added now; empty: the node serves pods.
	NotReady string `json:"notReady,omitempty"`
	// Degraded says what does not work although pods are served.
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
	// NoTunnel says why no packets go through the tunnel; empty: they do, or none need to.
	NoTunnel string `json:"noTunnel,omitempty"`
	// Peers are where packets to other nodes are sent.
	Peers []AgentPeer `json:"peers,omitempty"`
	Pods  int         `json:"pods"`
	// Bridging: pods may be bridged here. NoUplink says why they cannot be.
	Bridging bool   `json:"bridging"`
	NoUplink string `json:"noUplink,omitempty"`
	// Reach is what probes of other nodes' pods found; nil: this agent does not probe.
	Reach *AgentReach `json:"reach,omitempty"`
	// Flows are the desired flows, in the syntax of "ovs-ofctl dump-flows"; nil: not known yet.
	Flows []string `json:"flows,omitempty"`
}

// AgentPeer is another node.
type AgentPeer struct {
	Node    string     `json:"node"`
	Address netip.Addr `json:"address"`
	// Routed are those of its podCIDRs to which packets go without a tunnel.
	Routed []netip.Prefix `json:"routed,omitempty"`
}

// AgentReach says which pods' paths to other nodes work.
type AgentReach struct {
	// Problem says why nothing is probed.
	Problem string `json:"problem,omitempty"`
	// Asked is how many nodes are probed now. Reached are those whose pods are reached in both directions, Unknown those
	// about which nothing is known yet, and Away those whose agent or node does not run.
	Asked   int `json:"asked"`
	Reached int `json:"reached"`
	Unknown int `json:"unknown"`
	Away    int `json:"away"`
	// Findings are the paths that do not work, by node.
	Findings []ReachFinding `json:"findings,omitempty"`
	// Paths are all that are probed now, by node.
	Paths []ReachPath `json:"paths,omitempty"`
}

// ReachPath is what is known about one path, and what is needed to judge it from both ends. If it works, or nothing is
// known about it, it has no cause, and Since is since when both directions have worked.
type ReachPath struct {
	ReachFinding
	// State is "reached", "unknown", "away" or "broken".
	State string `json:"state"`
	// Refused: the kernel of the other end refuses the packets, so that they pass in both directions.
	Refused bool `json:"refused,omitempty"`
	// DropsIn and DropsOut are what drops the tunnel's packets from and to the other node on this node; NoTunnel says why
	// this node's tunnel cannot work.
	DropsIn  string `json:"dropsIn,omitempty"`
	DropsOut string `json:"dropsOut,omitempty"`
	NoTunnel string `json:"noTunnel,omitempty"`
	// Tunnel is what carries the path's packets, "geneve, udp port 6081"; empty: they are routed.
	Tunnel string `json:"tunnel,omitempty"`
	// Echo, FullEcho and EndEcho are the outcomes of pings: of the other node's address, of the same with full-size
	// packets, and of its end.
	Echo     string `json:"echo,omitempty"`
	FullEcho string `json:"fullEcho,omitempty"`
	EndEcho  string `json:"endEcho,omitempty"`
	// Tap is what was seen of the path's packets on this node's interfaces while it failed.
	Tap ReachTap `json:"tap,omitzero"`
}

// ReachTap is a capture of a path's packets on all interfaces of this node; the zero value: there was none.
type ReachTap struct {
	// Began is when it began, and Sent how many packets this node's end has sent meanwhile.
	Began time.Time `json:"began,omitzero"`
	Sent  int       `json:"sent"`
	// Left are packets to the other node that left through an interface, LeftBy, and LeftFull those of full size.
	Left     int    `json:"left"`
	LeftFull int    `json:"leftFull"`
	LeftBy   string `json:"leftBy,omitempty"`
	// Inside: that interface passes them to another one, which was not seen to send them: a bridge, VLAN, bond or tap
	// device.
	Inside bool `json:"inside,omitempty"`
	// Arrived are packets from the other node that arrived at an interface, ArrivedBy, and ArrivedFull those of full size.
	Arrived     int    `json:"arrived"`
	ArrivedFull int    `json:"arrivedFull"`
	ArrivedBy   string `json:"arrivedBy,omitempty"`
	// LeftSums and ArrivedSums are the state of the UDP checksums of all of these, as far as they could be checked. Driver
	// is that of LeftBy.
	LeftSums    Checksums `json:"leftSums,omitempty"`
	ArrivedSums Checksums `json:"arrivedSums,omitempty"`
	Driver      string    `json:"driver,omitempty"`
	// Source is the source address of those that arrived in a tunnel, if it is not that of the other node.
	Source string `json:"source,omitempty"`
	// Unheld is an address of this node's Node that no interface has.
	Unheld string `json:"unheld,omitempty"`
	// NoRoute says why the kernel does not forward packets to the other node, and Filtered why it does not forward packets
	// from there.
	NoRoute  string `json:"noRoute,omitempty"`
	Filtered string `json:"filtered,omitempty"`
}

// Checksums is the state of packets' checksums; empty: not all alike, or unknown.
type Checksums string

// Offloaded checksums are not in the packets yet: the device that sends them is to compute them.
const (
	ChecksumsRight     Checksums = "right"
	ChecksumsWrong     Checksums = "wrong"
	ChecksumsOffloaded Checksums = "offloaded"
)

// ReachFinding is a path between pods of this node and of another that does not work.
type ReachFinding struct {
	Node   string `json:"node"`
	Family string `json:"family"`
	// Address is the other node's own address that the path's packets go to, if the path does not work and it is known.
	Address netip.Addr `json:"address,omitzero"`
	// FromThere and ToThere are the states of the two directions: unknown, works, fails, narrow, lossy or no-tcp, which
	// only the sender knows.
	FromThere string `json:"fromThere"`
	ToThere   string `json:"toThere"`
	// Since is when it was found.
	Since time.Time `json:"since"`
	// Cause is a word for the cause, Text a sentence, and Seen the evidence.
	Cause string   `json:"cause"`
	Text  string   `json:"text"`
	Seen  []string `json:"seen,omitempty"`
}
