package firewall

import (
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/fairlead-cni/fairlead/datapath/nat"
)

// TunnelPackets are the tunnel's packets from and to a node, through the transport interface; false: there is no route
// to the node.
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

// Leaves reports whether this host sends packets to an address through that interface.
func Leaves(to netip.Addr, ifName string) bool {
	routes, err := netlink.RouteGet(to.AsSlice())
	if err != nil || len(routes) == 0 {
		return false
	}
	l, err := netlink.LinkByIndex(routes[0].LinkIndex)
	return err == nil && l.Attrs().Name == ifName
}

// RoutedPackets are the first packets of UDP connections from a pod on another node to one here, and the other way
// round, which this host forwards between its pods' gateway and the transport interface.
func RoutedPackets(gateway, transport string, here, elsewhere netip.Addr, port int) (in, out Packet) {
	in = Packet{In: transport, Out: gateway, Src: elsewhere, Dst: here, Protocol: "udp", Port: port}
	out = Packet{In: gateway, Out: transport, Src: here, Dst: elsewhere, Protocol: "udp", Port: port}
	return in, out
}
