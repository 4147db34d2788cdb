package tables

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/openflow"
)

// Short names used in all tables.
type (
	Flow   = openflow.Flow
	Match  = openflow.Match
	Action = openflow.Action
)

// Prefixes are, by table, the fields whose prefixes Open vSwitch must track (ovs-vswitchd.conf.db(5), Flow_Table
// prefixes) for megaflows to be as wide as the flows. What it tracks by default is IPv4 only.
func Prefixes() map[int][]string {
	return map[int][]string{
		openflow.TableClassify: {"nw_src", "ipv6_src"},
		openflow.TableForward:  {"nw_dst", "ipv6_dst"},
	}
}

// Pipeline returns all flows for v. It is pure, and the order within v does not matter: equal views give the same flows
// in the same order. No two flows have the same table, priority and match; on a conflict, such as two pods with one
// address, the first by port, or by name of the peer, gets the flow.
func Pipeline(v View) []Flow {
	v = v.Normalised()
	return FirstOfEach(slices.Concat(classify(v), resolve(v), forward(v), output(v)))
}

// Normalised returns a copy of v with only what can have flows, in a fixed order, with addresses and prefixes in
// canonical form.
func (v View) Normalised() View {
	v.Gateway.Addrs = tidy(v.Gateway.Addrs, plain, netip.Addr.Compare)
	v.Gateway.PodCIDRs = tidy(v.Gateway.PodCIDRs, netip.Prefix.Masked, netip.Prefix.Compare)
	v.NodeAddrs = tidy(v.NodeAddrs, plain, netip.Addr.Compare)
	v.ViaHost = tidy(v.ViaHost, netip.Prefix.Masked, netip.Prefix.Compare)
	pods := make([]Pod, 0, len(v.Pods))
	for _, p := range v.Pods {
		if p.Port != 0 && p.MAC != (api.MAC{}) && p.VLAN <= api.MaxVLAN {
			p.Addrs = tidy(p.Addrs, plain, netip.Addr.Compare)
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
			p.Tunnel = plain(p.Tunnel)
			p.PodCIDRs = tidy(p.PodCIDRs, netip.Prefix.Masked, netip.Prefix.Compare)
			p.Direct = tidy(p.Direct, netip.Prefix.Masked, netip.Prefix.Compare)
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

// present reports whether the gateway port exists.
func (g Gateway) present() bool { return g.Port != 0 && g.MAC != (api.MAC{}) }

// tidy returns the valid elements of in, made canonical by one, sorted.
func tidy[T comparable](in []T, one func(T) T, order func(a, b T) int) (out []T) {
	for _, x := range in {
		if x = one(x); x != *new(T) {
			out = append(out, x)
		}
	}
	slices.SortFunc(out, order)
	return slices.Compact(out)
}

func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// room returns a slice for perPod flows of each pod, perPeer flows of each peer and a few more: growing a slice with
// the flows of thousands of peers costs more than filling it.
func (v View) room(perPod, perPeer int) []Flow {
	return make([]Flow, 0, 32+perPod*len(v.Pods)+perPeer*len(v.Peers))
}

// FirstOfEach leaves out flows with the key of an earlier one.
func FirstOfEach(flows []Flow) []Flow {
	seen := make(map[openflow.Key]struct{}, len(flows))
	return slices.DeleteFunc(flows, func(f Flow) bool {
		before := len(seen)
		seen[f.Key()] = struct{}{}
		return len(seen) == before
	})
}

// etherTypeOf returns the ethertype of packets with address a.
func etherTypeOf(a netip.Addr) openflow.EtherType {
	if a.Is4() {
		return openflow.IPv4
	}
	return openflow.IPv6
}

// host returns the prefix that contains only a.
func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// neighbours returns the addresses that the owner of mac and addrs uses in neighbour discovery: its IPv6 addresses and
// the link-local one; none if addrs has no IPv6 address.
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
