package explain

import (
	"fmt"
	"net/netip"
	"slices"
)

// Descriptions of ports.
const (
	TheTunnel = "the tunnel"
	TheUplink = "the uplink"
	TheNode   = "the gateway (the node itself)"
)

// Pod is what is needed to build a pod's packet.
type Pod struct {
	// Port is the name of the pod's bridge port.
	Port, MAC string
	// Bridged pods are in VLAN; 0 is untagged.
	Bridged bool
	VLAN    uint16
}

// Ports are the ports of one node's bridge.
type Ports struct {
	// Names are descriptions of ports; see Trace.
	Names map[string]string
	// Pods are by namespace/name.
	Pods map[string]Pod
}

// NewPorts returns Ports without any.
func NewPorts() Ports { return Ports{map[string]string{}, map[string]Pod{}} }

// Add adds a port with that description: TheTunnel, TheUplink or TheNode.
func (p Ports) Add(port, called string) { p.Names[port] = called }

// AddPod adds the port of a pod.
func (p Ports) AddPod(name string, pod Pod) { p.Names[pod.Port], p.Pods[name] = "pod "+name, pod }

// byName returns the port with that description.
func (p Ports) byName(name string) (string, error) {
	for port, n := range p.Names {
		if n == name {
			return port, nil
		}
	}
	return "", fmt.Errorf("no port of %s", name)
}

// Echo returns an ICMP echo request to dst from the one of ips of the same family, in the syntax of ovs-fields(7),
// without the ingress port.
func Echo(ips []netip.Addr, dst netip.Addr) (packet string, err error) {
	proto, src, kind := "icmp", "nw_src=%s,nw_dst=%s,nw_ttl=64", "icmp_type=8"
	if dst.Is6() {
		proto, src, kind = "icmp6", "ipv6_src=%s,ipv6_dst=%s,nw_ttl=64", "icmpv6_type=128"
	}
	i := slices.IndexFunc(ips, func(ip netip.Addr) bool { return ip.Is6() == dst.Is6() })
	if i < 0 {
		return "", fmt.Errorf("the sender has no address of the same family as %s", dst)
	}
	return fmt.Sprintf("%s,%s,"+src, proto, kind, ips[i], dst), nil
}

// Request returns the first packet of a connection to dst, or a datagram, as Echo does. protocol is IANA's number of
// TCP or UDP.
func Request(ips []netip.Addr, dst netip.AddrPort, protocol uint8) (packet string, err error) {
	const tcp, sctp, clientPort = 6, 132, 40000 // a typical ephemeral port of Linux
	i := slices.IndexFunc(ips, func(ip netip.Addr) bool { return ip.Is6() == dst.Addr().Is6() })
	if i < 0 {
		return "", fmt.Errorf("the sender has no address of the same family as %s", dst.Addr())
	}
	name, ports := "udp", ",udp_src=%d,udp_dst=%d"
	if protocol == tcp {
		name, ports = "tcp", ",tcp_src=%d,tcp_dst=%d,tcp_flags=syn"
	}
	if protocol == sctp {
		name, ports = "sctp", ",sctp_src=%d,sctp_dst=%d"
	}
	addrs := "nw_src=%s,nw_dst=%s"
	if dst.Addr().Is6() {
		name, addrs = name+"6", "ipv6_src=%s,ipv6_dst=%s"
	}
	return fmt.Sprintf("%s,"+addrs+",nw_ttl=64"+ports, name, ips[i], dst.Addr(), clientPort, dst.Port()), nil
}

// FromPod returns the match fields of a packet from a pod of this node.
func (p Ports) FromPod(pod string) string {
	return "in_port=" + p.Pods[pod].Port + ",dl_src=" + p.Pods[pod].MAC
}

// OutOfTunnel returns the match fields of a packet out of the tunnel from the node with that address.
func (p Ports) OutOfTunnel(from netip.Addr) (string, error) {
	port, err := p.byName(TheTunnel)
	if err != nil {
		return "", err
	}
	if from.Is6() {
		return "in_port=" + port + ",tun_ipv6_src=" + from.String(), nil
	}
	return "in_port=" + port + ",tun_src=" + from.String(), nil
}

// OutOfUplink returns the match fields of a packet for a bridged pod from the underlay: from its own VLAN, or from a
// router there.
func (p Ports) OutOfUplink(pod string) (string, error) {
	port, err := p.byName(TheUplink)
	if err != nil {
		return "", err
	}
	packet := "in_port=" + port + ",dl_dst=" + p.Pods[pod].MAC
	if vlan := p.Pods[pod].VLAN; vlan != 0 {
		packet += fmt.Sprintf(",dl_vlan=%d", vlan)
	}
	return packet, nil
}

// FromNode returns the match fields of a packet from the node itself, which receives it from the underlay if there is
// no tunnel.
func (p Ports) FromNode() (string, error) {
	port, err := p.byName(TheNode)
	return "in_port=" + port, err
}

// Leaves reports whether a packet left by the port with that description, given the output of Trace.
func Leaves(trace []string, called string) bool { return slices.Contains(trace, "  "+outputTo+called) }
