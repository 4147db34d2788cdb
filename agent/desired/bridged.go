package desired

import (
	"bytes"
	"cmp"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
	"github.com/fairlead-cni/fairlead/datapath/route"
	"github.com/fairlead-cni/fairlead/datapath/uplink"
	"github.com/fairlead-cni/fairlead/datapath/uplink/steer"
	"github.com/fairlead-cni/fairlead/ipam/pool"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

// uplinkPort is this bridge's end of the patch to the uplink's bridge, wanted while that bridge exists.
func uplinkPort(attached bool) *ovsdb.UplinkPort {
	if !attached {
		return nil
	}
	return &ovsdb.UplinkPort{Name: uplink.PeerPort, Type: "patch", Options: map[string]string{"peer": uplink.PatchPort}}
}

// steered are the addresses of the bridged pods on the underlay.
func steered(attachments []api.Attachment) (out []steer.Entry) {
	for _, a := range attachments {
		if a.Bridged {
			out = append(out, steer.Entry{MAC: a.MAC, VLAN: a.VLAN})
		}
	}
	slices.SortFunc(out, func(a, b steer.Entry) int {
		return cmp.Or(bytes.Compare(a.MAC[:], b.MAC[:]), cmp.Compare(a.VLAN, b.VLAN))
	})
	return out
}

// gatewayMTU is the MTU of the node's own port: large enough for packets of all kinds of pods.
func gatewayMTU(in Inputs, podMTU int) int {
	if !in.Config.EnableBridgingMode {
		return podMTU
	}
	return max(podMTU, UnderlayMTU(in.Config, in.Transport.MTU))
}

// nonDefaultMTU is mtu, or 0 if it equals the device's own.
func nonDefaultMTU(device, mtu int) int {
	if mtu == device {
		return 0
	}
	return mtu
}

// nodeAddrs are the node's own addresses, first those in its Node. Those in a Service CIDR are kube-proxy's (in mode
// ipvs it puts the Services' addresses on an interface).
func nodeAddrs(in Inputs) []netip.Addr {
	rest := slices.Concat(in.NodeAddrs, in.Own.Addresses)
	slices.SortFunc(rest, netip.Addr.Compare)
	var out []netip.Addr
	for _, a := range slices.Concat([]netip.Addr{in.Transport.IPv4, in.Transport.IPv6}, rest) {
		if a.IsValid() && !slices.Contains(out, a) && !within(in.serviceCIDRs(), a) {
			out = append(out, a)
		}
	}
	return out
}

// LacksServiceCIDRv6 reports whether IPv6 Services are likely and bridged pods would send to them on the underlay.
func LacksServiceCIDRv6(cfg api.AgentConfig, podCIDRs []netip.Prefix) bool {
	_, v6 := Families(podCIDRs)
	return cfg.EnableBridgingMode && v6 && !cfg.ServiceCIDRv6.IsValid()
}

func within(prefixes []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}

// viaHost are the ranges that bridged pods reach through the node, besides its own addresses: Services, and podCIDRs to
// which the node has a route. Where the underlay routes podCIDRs, those of other nodes are destinations like any other.
func viaHost(in Inputs, peers []Peer, gateways []netip.Prefix) []netip.Prefix {
	out := slices.Concat(in.serviceCIDRs(), in.Own.PodCIDRs)
	if in.Config.TrafficEncapMode == api.ModeNoEncap && in.Config.NoSNAT {
		return route.Aggregate(out)
	}
	for _, p := range peers {
		for _, c := range p.PodCIDRs {
			if c.Path != PathTunnel || hasFamily(gateways, c.Addr()) {
				out = append(out, c.Prefix)
			}
		}
	}
	return route.Aggregate(out)
}

func hasFamily(prefixes []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Addr().Is4() == a.Is4() })
}

// bridgedRoutes lead the host's packets for its bridged pods to the gateway, with
// the node's own address of the family as source.
func bridgedRoutes(in Inputs) []route.Route {
	var out []route.Route
	for _, a := range in.Attachments {
		if !a.Bridged {
			continue
		}
		for _, p := range a.Addrs {
			src := in.Transport.IPv6
			if p.Addr().Is4() {
				src = in.Transport.IPv4
			}
			out = append(out, route.Route{Dst: netip.PrefixFrom(p.Addr(), p.Addr().BitLen()), MAC: a.MAC, Src: src})
		}
	}
	slices.SortFunc(out, func(a, b route.Route) int { return netip.Prefix.Compare(a.Dst, b.Dst) })
	return out
}

// HeldCIDRs are the podCIDRs that the addresses of this node's routed pods come from, for an agent that starts on a
// node without a podCIDR: these pods keep their gateway until this node gets another range, or another node gets
// theirs.
func HeldCIDRs(own inputs.Node, nodes map[string]inputs.Node, attachments []api.Attachment) []netip.Prefix {
	var out []netip.Prefix
	for _, a := range attachments {
		for _, p := range a.Addrs {
			if !a.Bridged && p.Bits() < p.Addr().BitLen() {
				out = append(out, p.Masked())
			}
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.DeleteFunc(slices.Compact(out), func(p netip.Prefix) bool {
		for _, n := range nodes {
			if n.Name != own.Name && slices.ContainsFunc(n.PodCIDRs, p.Overlaps) {
				return true
			}
		}
		return false
	})
}

// bridgedFamilies are the families of the bridged pods that run here.
func bridgedFamilies(attachments []api.Attachment) (v4, v6 bool) {
	for _, a := range attachments {
		if a.Bridged {
			has4, has6 := Families(a.Addrs)
			v4, v6 = v4 || has4, v6 || has6
		}
	}
	return v4, v6
}

// masqueraded are the ranges for which the node translates addresses, of families in which it has an address itself:
// those of pools that overlap no podCIDRs and Services, since nothing is allocated from others; and the addresses of
// its pods, whose pool may have been deleted or become invalid.
func masqueraded(in Inputs, peers []Peer) []netip.Prefix {
	taken := slices.Concat(in.serviceCIDRs(), in.Own.PodCIDRs)
	for _, p := range peers {
		for _, c := range p.PodCIDRs {
			taken = append(taken, c.Prefix)
		}
	}
	taken = route.Aggregate(taken)
	out := slices.DeleteFunc(slices.Clone(in.Pools), func(p netip.Prefix) bool {
		return slices.ContainsFunc(taken, p.Overlaps)
	})
	for _, a := range in.Attachments {
		for _, p := range a.Addrs {
			if a.Bridged {
				out = append(out, netip.PrefixFrom(p.Addr(), p.Addr().BitLen()))
			}
		}
	}
	return route.Aggregate(slices.DeleteFunc(out, func(p netip.Prefix) bool {
		if p.Addr().Is4() {
			return !in.Transport.IPv4.IsValid()
		}
		return !in.Transport.IPv6.IsValid()
	}))
}

// PoolRanges are the ranges of all valid pools of pods' addresses.
func PoolRanges(pools map[string]api.IPPool) []netip.Prefix {
	var out []netip.Prefix
	for _, object := range pools {
		if p, err := pool.Read(object); err == nil && p.Scope == "" {
			out = append(out, p.Prefixes()...)
		}
	}
	return route.Aggregate(out)
}

// UnderlayMTU is the MTU of bridged pods in bytes, given that of the transport interface, without overhead of a tunnel.
func UnderlayMTU(cfg api.AgentConfig, transport int) int {
	if cfg.DefaultMTU != 0 {
		return min(cfg.DefaultMTU, transport)
	}
	return transport
}
