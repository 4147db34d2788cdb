package desired

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/datapath/nat"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
	"github.com/fairlead-cni/fairlead/datapath/route"
	"github.com/fairlead-cni/fairlead/datapath/uplink/steer"
	"github.com/fairlead-cni/fairlead/kube/inputs"
	"github.com/fairlead-cni/fairlead/openflow/clusterip"
	"github.com/fairlead-cni/fairlead/openflow/tables"
)

// TunnelPortName is the OVS port that carries pod traffic to other nodes.
const TunnelPortName = "fairlead-tun0"

// Inputs is all that Compute depends on.
type Inputs struct {
	Config api.AgentConfig
	// Own is the last valid state of this node's Node (see CheckOwn), Nodes are all Nodes as they are now.
	Own   inputs.Node
	Nodes map[string]inputs.Node
	// Transport is the interface that carries traffic to other nodes.
	Transport link.Transport
	// Uplink is the interface on which the host receives from the underlay, if its frames reach the uplink's bridge as
	// well; else empty.
	Uplink string
	// NodeAddrs are the addresses of the node's interfaces.
	NodeAddrs []netip.Addr
	// Pools are the ranges that bridged pods have their addresses from.
	Pools []netip.Prefix
	// ServiceCIDRs are those of the cluster, in addition to those of the config.
	ServiceCIDRs []netip.Prefix
	// Needed are addresses that no route to pods may cover.
	Needed []link.Needed
	// Attachments are the attachments that the node should have, in any order.
	Attachments []api.Attachment
}

// State is what the node should look like: one value for each applier.
type State struct {
	OVSDB   ovsdb.Desired
	Gateway link.GatewayLink
	Routes  route.Desired
	NAT     nat.Desired
	// Steer are the bridged pods that the uplink's programs serve in mode steer.
	Steer []steer.Entry
	Peers []Peer
	// PodMTU and BridgedMTU are the MTUs of routed and of bridged pods' interfaces, in bytes.
	PodMTU, BridgedMTU int
	// NodeAddrs and ViaHost are what bridged pods reach through the host.
	NodeAddrs []netip.Addr
	ViaHost   []netip.Prefix
	// ServiceCIDRs are the ranges of ClusterIPs that Open vSwitch translates; none: it translates none.
	ServiceCIDRs []netip.Prefix
	// Problems are sentences about inputs that could not be served, sorted.
	Problems []string
}

// Compute returns what the node should look like. It is pure: the same inputs in any order give the same value.
func Compute(in Inputs) State {
	gateways := gatewayAddrs(in.Own.PodCIDRs)
	local := Endpoint(in.Transport, in.Own)
	mtu := PodMTU(in.Config, in.Transport.MTU, local)
	gwMTU := gatewayMTU(in, mtu)
	mac := gatewayMAC(in.Own.Name)
	peers, problems := peersOf(in, local)
	bridged4, bridged6 := bridgedFamilies(in.Attachments)
	d := State{
		OVSDB: ovsdb.Desired{
			Bridge:       in.Config.OVSBridge,
			DatapathType: in.Config.OVSDatapathType,
			Prefixes:     tables.Prefixes(),
			Gateway:      ovsdb.GatewayPort{Name: in.Config.HostGateway, MAC: mac, MTU: gwMTU},
			Tunnel:       tunnelPort(in.Config, local),
			Uplink:       uplinkPort(in.Uplink != ""),
			Pods:         slices.Clone(in.Attachments),
		},
		Gateway: link.GatewayLink{Name: in.Config.HostGateway, MAC: mac, MTU: gwMTU, Addrs: gateways,
			SubnetMTU: nonDefaultMTU(gwMTU, mtu), Sources: sources(in), IPv4: bridged4, IPv6: bridged6},
		Routes: route.Desired{Link: in.Config.HostGateway, Transport: in.Transport.Name,
			Routes: slices.Concat(peerRoutes(in, peers, gateways, nonDefaultMTU(gwMTU, mtu)), bridgedRoutes(in)),
			Own:    slices.Clone(in.Own.PodCIDRs)},
		NAT: nat.Desired{
			Gateway:        in.Config.HostGateway,
			PodCIDRs:       slices.Clone(in.Own.PodCIDRs),
			Pools:          masqueraded(in, peers),
			Masquerade:     !in.Config.NoSNAT,
			RandomFully:    in.Config.SNATFullyRandomPorts,
			NotMasqueraded: notMasqueraded(in.Config, peers),
			Tunnel:         tunnelTraffic(in.Config),
			TunnelEnd:      tunnelEnd(in, local),
		},
		Steer:      steered(in.Attachments),
		Peers:      peers,
		PodMTU:     mtu,
		BridgedMTU: UnderlayMTU(in.Config, in.Transport.MTU),
		NodeAddrs:  nodeAddrs(in),
		ViaHost:    viaHost(in, peers, gateways),
		Problems:   problems,
	}
	if in.Config.Services == api.ServicesOVS {
		d.ServiceCIDRs = in.serviceCIDRs()
		d.NAT.Refused = d.ServiceCIDRs
		d.OVSDB.Zones = ovsdb.Zones{Numbers: clusterip.AllZones(podsOf(d.OVSDB.Pods, nil)), Timeouts: clusterip.Timeouts()}
	}
	if len(d.NAT.Pools) > 0 {
		d.NAT.NodeAddrs = d.NodeAddrs
	}
	slices.SortFunc(d.OVSDB.Pods, func(a, b api.Attachment) int { return cmp.Compare(a.HostIf, b.HostIf) })
	slices.SortFunc(d.NAT.PodCIDRs, netip.Prefix.Compare)
	slices.SortFunc(d.Routes.Own, netip.Prefix.Compare)
	return d
}

// sources are the source addresses of the node's own packets to its routed pods where policies are enforced. Packets
// that it masquerades towards them have the gateway's, so that policies can distinguish the two.
func sources(in Inputs) []netip.Addr {
	if in.Config.NetworkPolicies != api.PoliciesEnforce {
		return nil
	}
	return slices.DeleteFunc([]netip.Addr{in.Transport.IPv4, in.Transport.IPv6},
		func(a netip.Addr) bool { return !a.IsValid() })
}

// serviceCIDRs are all ranges of ClusterIPs.
func (in Inputs) serviceCIDRs() []netip.Prefix {
	return route.Aggregate(slices.Concat(in.Config.ServiceCIDRs(), in.ServiceCIDRs))
}

// View adds to the desired state the port numbers that Open vSwitch has assigned, or will assign: no other port has
// these.
func (d State) View(obs ovsdb.Observed) tables.View {
	v := tables.View{
		Gateway: tables.Gateway{
			Port: obs.Gateway.OFPort, MAC: d.OVSDB.Gateway.MAC, PodCIDRs: d.NAT.PodCIDRs,
		},
		TunnelPort: obs.Tunnel.OFPort,
		Uplink:     obs.Uplink.OFPort,
		Peers:      tunnelPeers(d.Peers),
		NodeAddrs:  d.NodeAddrs,
		ViaHost:    d.ViaHost,
	}
	if d.PodMTU < d.BridgedMTU {
		v.RoutedMTU = d.PodMTU
	}
	for _, a := range d.Gateway.Addrs {
		v.Gateway.Addrs = append(v.Gateway.Addrs, a.Addr())
	}
	ports := map[string]uint32{}
	for _, p := range obs.Pods {
		ports[p.HostIf] = cmp.Or(p.OFPort, p.Requested)
	}
	v.Pods = podsOf(d.OVSDB.Pods, ports)
	return v
}

// podsOf are the pods of attachments; ports has the port numbers by name.
func podsOf(attachments []api.Attachment, ports map[string]uint32) (out []tables.Pod) {
	for _, a := range attachments {
		pod := tables.Pod{Port: ports[a.HostIf], MAC: a.MAC, Bridged: a.Bridged, VLAN: a.VLAN}
		for _, p := range a.Addrs {
			pod.Addrs = append(pod.Addrs, p.Addr())
		}
		out = append(out, pod)
	}
	return out
}

// gatewayAddrs are the first address of each podCIDR, with its mask.
func gatewayAddrs(podCIDRs []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range podCIDRs {
		out = append(out, netip.PrefixFrom(p.Addr().Next(), p.Bits()))
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return out
}

// gatewayMAC is derived from the node's name, so that it survives every restart and pods' neighbour entries stay valid.
func gatewayMAC(node string) api.MAC { return api.LocalMAC("gateway " + node) }

// Overhead is what a tunnel adds to a packet, in bytes: the outer Ethernet
// payload minus the inner one. IPv4: IP 20, UDP 8 or none, tunnel header 8
// (geneve, vxlan: RFC 8926, RFC 7348), 8 (gre with key: RFC 2890), inner
// Ethernet 14.
func Overhead(cfg api.AgentConfig, local netip.Addr) int {
	if !Tunnels(cfg) {
		return 0
	}
	bytes := map[string]int{
		api.TunnelGeneve: 50, api.TunnelVXLAN: 50, api.TunnelGRE: 42,
	}[cfg.TunnelType]
	if local.Is6() {
		bytes += 20
	}
	return bytes
}

// tunnelTraffic describes the tunnel's packets between nodes.
func tunnelTraffic(cfg api.AgentConfig) nat.Tunnel {
	if !Tunnels(cfg) {
		return nat.Tunnel{}
	}
	return nat.TunnelOf(cfg.TunnelType, cfg.TunnelPort)
}

// tunnelEnd is where the host's netfilter meets the tunnel.
func tunnelEnd(in Inputs, local netip.Addr) nat.TunnelEnd {
	if !Tunnels(in.Config) || in.Config.OVSDatapathType == api.DatapathNetdev || !local.IsValid() {
		return nat.TunnelEnd{}
	}
	return nat.TunnelEnd{Interface: in.Transport.Name, Addr: local}
}

// PodMTU is the MTU of pods in bytes, given that of the transport interface. In
// hybrid mode it leaves room for the tunnel to all peers: a pod has one MTU.
func PodMTU(cfg api.AgentConfig, transport int, local netip.Addr) int {
	if cfg.DefaultMTU != 0 {
		return cfg.DefaultMTU
	}
	return transport - Overhead(cfg, local)
}

// Tunnels reports whether any traffic may go through a tunnel.
func Tunnels(cfg api.AgentConfig) bool { return cfg.TrafficEncapMode != api.ModeNoEncap }

// Endpoint is this node's tunnel endpoint. One family is used for all peers: IPv4 if the Node and the interface have
// it, else IPv6.
func Endpoint(t link.Transport, own inputs.Node) netip.Addr {
	if _, v4 := own.TunnelAddr(true); t.IPv4.IsValid() && (v4 || !t.IPv6.IsValid()) {
		return t.IPv4
	}
	return t.IPv6
}

func tunnelPort(cfg api.AgentConfig, local netip.Addr) *ovsdb.TunnelPort {
	if !Tunnels(cfg) {
		return nil
	}
	return &ovsdb.TunnelPort{Name: TunnelPortName, Type: cfg.TunnelType, DstPort: cfg.TunnelPort,
		Csum: cfg.TunnelCsum, LocalIP: local}
}

// reserved are the ranges that no peer may claim: the node's own podCIDRs and
// the subnets of the transport interface. A route to a peer over one of these
// would cut the node off.
func reserved(in Inputs) []cidrClaim {
	var taken []cidrClaim
	for _, p := range in.Own.PodCIDRs {
		taken = append(taken, cidrClaim{p, &in.Own})
	}
	underlay := inputs.Node{Name: in.Own.Name + "'s underlay on " + in.Transport.Name}
	for _, p := range in.Transport.Subnets {
		taken = append(taken, cidrClaim{p, &underlay})
	}
	return taken
}

// neededBy are the addresses that the node needs, including those in its Node.
func neededBy(in Inputs) []link.Needed {
	needed := slices.Clone(in.Needed)
	for _, a := range in.Own.Addresses {
		needed = append(needed, link.Needed{Addr: a, What: "the address of this node"})
	}
	return needed
}

// Families reports which IP families are among the prefixes.
func Families(prefixes []netip.Prefix) (v4, v6 bool) {
	for _, p := range prefixes {
		v4, v6 = v4 || p.Addr().Is4(), v6 || p.Addr().Is6()
	}
	return v4, v6
}
