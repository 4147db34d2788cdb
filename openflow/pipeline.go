package openflow

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/api"
)

// Numbers of the tables.
const (
	TableClassify = 0
	TableResolve  = 1
	TableService  = 2 // reserved
	TableForward  = 3
	TableOutput   = 4
)

// Prefixes are, by table, the fields whose prefixes Open vSwitch must track (ovs-vswitchd.conf.db(5), Flow_Table
// prefixes) for megaflows to be as wide as the flows. What it tracks by default is IPv4 only.
func Prefixes() map[int][]string {
	return map[int][]string{
		TableClassify: {"nw_src", "ipv6_src"},
		TableForward:  {"nw_dst", "ipv6_dst"},
	}
}

// Pipeline returns all flows that v asks for. It is pure, and the order of what is in v does not matter: equal views
// give the same flows in the same order. No two of them have the same table, priority and match; where v asks for
// that, two pods with one address say, the first by port, or by name of the peer, gets the flow.
func Pipeline(v View) []Flow {
	v = v.normalised()
	return firstOfEach(slices.Concat(classify(v), resolve(v), forward(v), output(v)))
}

// normalised returns a copy of v that holds only what can have flows, in one
// order, with addresses and prefixes in their one shortest form.
func (v View) normalised() View {
	v.Gateway.Addrs = sortedAddrs(v.Gateway.Addrs)
	v.Gateway.PodCIDRs = sortedPrefixes(v.Gateway.PodCIDRs)
	v.NodeAddrs, v.ViaHost = sortedAddrs(v.NodeAddrs), sortedPrefixes(v.ViaHost)
	pods := make([]Pod, 0, len(v.Pods))
	for _, p := range v.Pods {
		if p.Port != 0 && p.MAC != (api.MAC{}) && p.VLAN <= api.MaxVLAN {
			p.Addrs = sortedAddrs(p.Addrs)
			pods = append(pods, p)
		}
	}
	slices.SortFunc(pods, func(a, b Pod) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), slices.Compare(a.MAC[:], b.MAC[:]), cmp.Compare(a.segment(), b.segment()),
			slices.CompareFunc(a.Addrs, b.Addrs, netip.Addr.Compare))
	})
	peers := make([]Peer, 0, len(v.Peers))
	for _, p := range v.Peers {
		if p.Tunnel.IsValid() {
			p.Tunnel = p.Tunnel.Unmap().WithZone("")
			p.PodCIDRs, p.Direct = sortedPrefixes(p.PodCIDRs), sortedPrefixes(p.Direct)
			peers = append(peers, p)
		}
	}
	slices.SortFunc(peers, func(a, b Peer) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), a.Tunnel.Compare(b.Tunnel),
			slices.CompareFunc(a.PodCIDRs, b.PodCIDRs, netip.Prefix.Compare),
			slices.CompareFunc(a.Direct, b.Direct, netip.Prefix.Compare))
	})
	v.Pods, v.Peers = pods, peers
	return v
}

// routed reports whether packets can be routed into the tunnel and out of it:
// the node's router needs a tunnel and a MAC to write into frames.
func (v View) routed() bool { return v.TunnelPort != 0 && v.Gateway.MAC != (api.MAC{}) }

// present reports whether the gateway port is there.
func (g Gateway) present() bool { return g.Port != 0 && g.MAC != (api.MAC{}) }

func sortedAddrs(in []netip.Addr) []netip.Addr {
	var out []netip.Addr
	for _, a := range in {
		if a.IsValid() {
			out = append(out, a.Unmap().WithZone(""))
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

func sortedPrefixes(in []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range in {
		if p.IsValid() {
			out = append(out, p.Masked())
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}

// room is a slice for perPod flows of each pod, perPeer flows of each peer and a few more: growing one that holds the
// flows of thousands of peers costs more than filling it.
func (v View) room(perPod, perPeer int) []Flow {
	return make([]Flow, 0, 32+perPod*len(v.Pods)+perPeer*len(v.Peers))
}

// firstOfEach leaves out flows whose key an earlier one has.
func firstOfEach(flows []Flow) []Flow {
	seen := make(map[key]struct{}, len(flows))
	return slices.DeleteFunc(flows, func(f Flow) bool {
		before := len(seen)
		seen[f.key()] = struct{}{}
		return len(seen) == before
	})
}

// etherTypeOf is the ethertype of packets with address a.
func etherTypeOf(a netip.Addr) EtherType {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// host is the prefix that holds a alone.
func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// neighbours are the addresses under which the owner of mac and addrs takes part in neighbour discovery: its IPv6
// addresses and the link-local one. They are none if addrs has no IPv6 address.
func neighbours(mac api.MAC, addrs []netip.Addr) []netip.Addr {
	var out []netip.Addr
	for _, a := range addrs {
		if a.Is6() && a != mac.LinkLocal() {
			out = append(out, a)
		}
	}
	if len(out) > 0 {
		out = append(out, mac.LinkLocal())
	}
	return out
}
