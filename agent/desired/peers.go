package desired

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
	"github.com/fairlead-cni/fairlead/datapath/route"
	"github.com/fairlead-cni/fairlead/kube/inputs"
	"github.com/fairlead-cni/fairlead/openflow/tables"
)

// Path is how packets travel to the pods of another node.
type Path string

const (
	// PathTunnel packets leave br-int through the tunnel.
	PathTunnel Path = "tunnel"
	// PathDirect packets are routed by this node's kernel to the other node, which is in a subnet of the transport
	// interface.
	PathDirect Path = "direct"
	// PathRouters packets go to a node in another subnet without a tunnel: this node forwards them like any other traffic,
	// and the underlay's routers must have routes to the podCIDR.
	PathRouters Path = "routers"
)

// Peer is another node whose pods are served.
type Peer struct {
	Name string
	// Tunnel is its tunnel endpoint. Invalid if there is none.
	Tunnel   netip.Addr
	PodCIDRs []PeerCIDR
	// NotReady: its Node is not ready.
	NotReady bool
	// NoAgent says why no agent of Fairlead runs there; empty: one may.
	NoAgent string
}

// PeerCIDR is one podCIDR of a peer with the path there. Each family has its own path: a dual-stack peer may be direct
// in one and tunnelled in the other.
type PeerCIDR struct {
	netip.Prefix
	Path Path
	// Via is the peer's address of the podCIDR's family, for PathDirect.
	Via netip.Addr
}

// peersOf returns the other nodes that are served, by name, and sentences about those that can't be. local is this
// node's tunnel endpoint.
func peersOf(in Inputs, local netip.Addr) ([]Peer, []string) {
	nodes := make([]inputs.Node, 0, len(in.Nodes)) // Nodes are large, so pointers to them are sorted
	others := make([]*inputs.Node, 0, len(in.Nodes))
	for _, n := range in.Nodes {
		if n.Name != in.Own.Name {
			nodes = append(nodes, n)
			others = append(others, &nodes[len(nodes)-1])
		}
	}
	slices.SortFunc(others, func(a, b *inputs.Node) int { return cmp.Compare(a.Name, b.Name) })
	refused := conflictingNodes(others, reserved(in), neededBy(in))
	var peers []Peer
	var problems []string
	for _, n := range others {
		if len(n.PodCIDRs) == 0 {
			continue // it has no podCIDR yet, and so no pods to reach
		}
		why, bad := refused[n.Name]
		var p Peer
		if !bad {
			p, why = peerOf(&in, n, local)
		}
		if why != "" {
			problems = append(problems, why+": its pods are not reached")
			continue
		}
		peers = append(peers, p)
	}
	slices.Sort(problems)
	return peers, problems
}

// peerOf finds the path to each podCIDR of n, or says why there is none.
func peerOf(in *Inputs, n *inputs.Node, local netip.Addr) (p Peer, problem string) {
	for _, a := range n.TunnelAddresses {
		if a == in.Transport.IPv4 || a == in.Transport.IPv6 {
			return p, fmt.Sprintf("node %s has this node's address %s", n.Name, a)
		}
	}
	p.Name, p.NotReady, p.NoAgent = n.Name, n.NotReady, n.NoAgent
	if Tunnels(in.Config) {
		p.Tunnel, _ = n.TunnelAddr(local.Is4())
	}
	if kind := noHost(p.Tunnel); kind != "" && !onLink(in.Transport, p.Tunnel) {
		return p, fmt.Sprintf("node %s has the %s address %s, which no other node can send to. Correct status.addresses of the "+
			"Node, or its annotation node.antrea.io/transport-addresses", n.Name, kind, p.Tunnel)
	}
	for _, cidr := range slices.SortedFunc(slices.Values(n.PodCIDRs), netip.Prefix.Compare) {
		c := PeerCIDR{Prefix: cidr, Path: PathTunnel}
		via, known := n.TunnelAddr(cidr.Addr().Is4())
		switch {
		case known && onLink(in.Transport, via) && (in.Config.TrafficEncapMode != api.ModeEncap || barred(*in, cidr)):
			c.Path, c.Via = PathDirect, via
		case !Tunnels(in.Config):
			c.Path = PathRouters
		case !p.Tunnel.IsValid():
			return p, fmt.Sprintf("node %s has no address of the same family as this node's %s", n.Name, local)
		}
		p.PodCIDRs = append(p.PodCIDRs, c)
	}
	return p, ""
}

// noHost returns the kind of an address that does not belong to a single host; empty for other addresses, and for none.
func noHost(a netip.Addr) string {
	switch {
	case a.IsLoopback():
		return "loopback"
	case a.IsUnspecified():
		return "unspecified"
	case a.IsMulticast():
		return "multicast"
	case a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return "broadcast"
	case a.IsLinkLocalUnicast():
		return "link-local"
	}
	return ""
}

// barred reports whether this node can't use the tunnel to cidr: it has no podCIDR of the family, and so no source
// address that the other end accepts. Outside of the tunnel, the other node still accepts packets of this node itself
// and of its bridged pods.
func barred(in Inputs, cidr netip.Prefix) bool {
	return in.Config.EnableBridgingMode && !hasFamily(in.Own.PodCIDRs, cidr.Addr())
}

// onLink reports whether a is in a subnet of the transport interface.
func onLink(t link.Transport, a netip.Addr) bool {
	return slices.ContainsFunc(t.Subnets, func(p netip.Prefix) bool { return p.Contains(a) })
}

// ByPath are the podCIDRs of peers that have the given path, by peer.
func ByPath(peers []Peer, path Path) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range peers {
		for _, c := range p.PodCIDRs {
			if c.Path == path {
				out = append(out, c.Prefix)
			}
		}
	}
	return out
}

// tunnelPeers are the peers that have a tunnel endpoint. Packets from their direct podCIDRs are accepted from the
// tunnel, too: while a peer moves between subnets, or its mode changes, the two nodes do not switch at the same moment.
func tunnelPeers(peers []Peer) []tables.Peer {
	var out []tables.Peer
	for _, p := range peers {
		if !p.Tunnel.IsValid() {
			continue
		}
		of := tables.Peer{Name: p.Name, Tunnel: p.Tunnel}
		for _, c := range p.PodCIDRs {
			if c.Path == PathTunnel {
				of.PodCIDRs = append(of.PodCIDRs, c.Prefix)
			} else {
				of.Direct = append(of.Direct, c.Prefix)
			}
		}
		out = append(out, of)
	}
	return out
}

// peerRoutes are the host's routes to peers' pods: to the gateway and into the tunnel, or directly to the peer;
// tunnelMTU is the tunnel's MTU if the gateway's is larger. Into the tunnel, only families of the node's own podCIDRs
// are routed, as the others have no source address for it; direct routes are for all families if the node serves
// bridged pods, which use them. A direct route sets no source: what the node sends without a tunnel has its own
// address.
func peerRoutes(in Inputs, peers []Peer, gateways []netip.Prefix, tunnelMTU int) []route.Route {
	var out []route.Route
	for _, peer := range peers {
		for _, cidr := range peer.PodCIDRs {
			g := slices.IndexFunc(gateways, func(g netip.Prefix) bool { return g.Addr().Is4() == cidr.Addr().Is4() })
			switch {
			case cidr.Path == PathTunnel && g >= 0:
				out = append(out, route.Route{Dst: cidr.Prefix, Src: gateways[g].Addr(), MTU: tunnelMTU})
			case cidr.Path == PathDirect && (g >= 0 || in.Config.EnableBridgingMode):
				out = append(out, route.Route{Dst: cidr.Prefix, Via: cidr.Via})
			}
		}
	}
	return out
}

// notMasqueraded are the ranges to which packets of this node's pods keep their source although they leave through the
// underlay. A peer in hybrid mode is among them even while it is tunnelled: when it becomes direct, its range must be
// exempt before the first packet, or that packet's connection would be masqueraded as long as it lasts.
func notMasqueraded(cfg api.AgentConfig, peers []Peer) []netip.Prefix {
	if cfg.TrafficEncapMode == api.ModeEncap {
		return nil
	}
	var out []netip.Prefix
	for _, p := range peers {
		for _, c := range p.PodCIDRs {
			out = append(out, c.Prefix)
		}
	}
	return route.Aggregate(out)
}

// NoTunnel says why no packets go through the tunnel to peers; nil: they do, as far as this node can tell. The
// userspace datapath sends them only through its own interfaces, and drops them if the route to the peer uses another
// one.
func NoTunnel(t link.Transport, peers []Peer, obs ovsdb.Observed) error {
	if obs.DatapathType != "netdev" || slices.Contains(obs.Devices, t.Name) || len(ByPath(peers, PathTunnel)) == 0 {
		return nil
	}
	return fmt.Errorf("pods of other nodes are not reached: the userspace datapath (ovsDatapathType: netdev) sends tunnel "+
		"packets only through interfaces of Open vSwitch, and this node's address is on %s, which is not one. Move the address to a "+
		"bridge of Open vSwitch that has the NIC as port, use the kernel's datapath, or set trafficEncapMode to noEncap", t.Name)
}
