package firewall

import (
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/fairlead-cni/fairlead/datapath/nat"
)

// TunnelPackets are the tunnel's packets from a node and to it, which pass the transport interface; false: there is no
// route to the node.
func TunnelPackets(tunnel nat.Tunnel, transport string, peer netip.Addr) (in, out Packet, ok bool) {
	routes, err := netlink.RouteGet(peer.AsSlice())
	if err != nil || len(routes) == 0 {
		return Packet{}, Packet{}, false
	}
	local, _ := netip.AddrFromSlice(routes[0].Src)
	packet := Packet{Protocol: tunnel.Protocol, Port: tunnel.Port}
	in, out = packet, packet
	in.In, in.Src, in.Dst = transport, peer, local.Unmap()
	out.Out, out.Src, out.Dst = transport, local.Unmap(), peer
	return in, out, true
}
