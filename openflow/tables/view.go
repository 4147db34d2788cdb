package tables

import (
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/openflow"
)

// View is all that a node's flows depend on. Port numbers are OpenFlow port numbers as read from OVSDB; 0 means that
// the port does not exist (yet) and gets no flows.
type View struct {
	Gateway    Gateway
	TunnelPort uint32
	// Uplink is the port that carries underlay frames, with their VLAN tags.
	Uplink uint32
	Pods   []Pod
	Peers  []Peer
	// NodeAddrs are the node's own addresses. Bridged pods reach them through the gateway port, whatever their VLAN.
	NodeAddrs []netip.Addr
	// ViaHost are further destinations of bridged pods for which the node is
	// the router: the cluster's Services, and podCIDRs.
	ViaHost []netip.Prefix
	// RoutedMTU is routed pods' MTU, in bytes, if bridged ones have a larger one; otherwise 0.
	RoutedMTU int
}

// Equal reports whether v and w are the same, in the same order: then Pipeline returns the same flows.
func (v View) Equal(w View) bool {
	return v.TunnelPort == w.TunnelPort && v.Uplink == w.Uplink && v.Gateway.equal(w.Gateway) &&
		slices.EqualFunc(v.Pods, w.Pods, Pod.equal) && slices.EqualFunc(v.Peers, w.Peers, Peer.equal) &&
		slices.Equal(v.NodeAddrs, w.NodeAddrs) && slices.Equal(v.ViaHost, w.ViaHost) &&
		v.RoutedMTU == w.RoutedMTU
}

func (g Gateway) equal(h Gateway) bool {
	return g.Port == h.Port && g.MAC == h.MAC && slices.Equal(g.Addrs, h.Addrs) && slices.Equal(g.PodCIDRs, h.PodCIDRs)
}

func (p Pod) equal(q Pod) bool {
	return p.Port == q.Port && p.MAC == q.MAC && p.Bridged == q.Bridged && p.VLAN == q.VLAN &&
		slices.Equal(p.Addrs, q.Addrs)
}

func (p Peer) equal(q Peer) bool {
	return p.Name == q.Name && p.Tunnel == q.Tunnel && slices.Equal(p.PodCIDRs, q.PodCIDRs) &&
		slices.Equal(p.Direct, q.Direct)
}

// Gateway is the node's own port on br-int, through which pods reach the host and everything outside the cluster.
type Gateway struct {
	Port uint32
	MAC  api.MAC
	// Addrs are the gateway's addresses: the first of each podCIDR.
	Addrs []netip.Addr
	// PodCIDRs are the node's own podCIDRs.
	PodCIDRs []netip.Prefix
}

// Pod is one pod port with the only MAC and the only addresses it may use.
type Pod struct {
	Port  uint32
	MAC   api.MAC
	Addrs []netip.Addr
	// Bridged: the pod is on the underlay, in the VLAN with the ID VLAN, or untagged if that is 0.
	Bridged bool
	VLAN    uint16
}

// segment is none for a routed pod.
func (p Pod) segment() openflow.Segment {
	if !p.Bridged {
		return 0
	}
	return openflow.SegmentOf(p.VLAN)
}

// segments returns the segments of bridged pods, sorted.
func (v View) segments() []openflow.Segment {
	var out []openflow.Segment
	for _, p := range v.Pods {
		if p.Bridged {
			out = append(out, p.segment())
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Peer is another node.
type Peer struct {
	Name string
	// PodCIDRs are reached through the tunnel.
	PodCIDRs []netip.Prefix
	// Direct are podCIDRs that the host routes without the tunnel. They have no flow in Forward; Classify nevertheless
	// accepts them as sources out of the tunnel.
	Direct []netip.Prefix
	// Tunnel is the peer's tunnel endpoint. Invalid if the peer is not reached through the tunnel; it then gets no flows.
	Tunnel netip.Addr
}
