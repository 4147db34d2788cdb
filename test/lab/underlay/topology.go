package underlay

import (
	"fmt"
	"net"
	"net/netip"
)

// MaxNodes is the number of nodes in the address plan of a lab.
const MaxNodes = 100

// Hosts of every lab beside its nodes.
const (
	// Outside is the host outside of the cluster: default gateway of the nodes, with addresses in remote networks.
	Outside = "outside"
	// Hub has the bridge, br0, to which all others are connected.
	Hub = "underlay"
	// Switch and Router replace it in mode Bridge: an Open vSwitch with access and trunk ports, and a router with a leg
	// in each VLAN, behind which the host outside is.
	Switch = "switch"
	Router = "router"
	// ControlPlane runs Kubernetes' API server, controller manager and etcd, if the lab has them.
	ControlPlane = "control-plane"
)

// IPFamily is the address families of nodes and pods.
type IPFamily string

// The families of a lab.
const (
	IPv4 IPFamily = "ipv4"
	IPv6 IPFamily = "ipv6"
	Dual IPFamily = "dual"
)

func (f IPFamily) has(a netip.Addr) bool {
	return f == Dual || (f == IPv4) == a.Is4()
}

// NodeName is the name of node number n, from 1.
func NodeName(n int) string { return fmt.Sprintf("node%d", n) }

// NodeAddrs are the addresses of node number n on an underlay of one subnet, with its mask.
func (f IPFamily) NodeAddrs(n int) []netip.Prefix { return f.NodeAddrsIn(1, n) }

// NodeAddrsIn are the addresses of node number n in subnet 1 or 2.
func (f IPFamily) NodeAddrsIn(subnet, n int) []netip.Prefix {
	return f.keep(netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 168, byte(76 + subnet), byte(10 + n)}), 24),
		netip.MustParsePrefix(fmt.Sprintf("fd%d::%d/64", 76+subnet, 10+n)))
}

// subnet is the subnet of node number n: nodes alternate.
func (u Network) subnet(n int) int {
	if u.Subnets < 2 {
		return 1
	}
	return (n-1)%u.Subnets + 1
}

// NodeAddrs are the addresses of node number n, with their masks.
func (u Network) NodeAddrs(n int) []netip.Prefix { return u.Family.NodeAddrsIn(u.subnet(n), n) }

// PodCIDRs are the podCIDRs of node number n.
func (f IPFamily) PodCIDRs(n int) []netip.Prefix {
	return f.keep(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 77, byte(n), 0}), 24),
		netip.MustParsePrefix(fmt.Sprintf("fd77:0:0:%d::/64", n)))
}

// GatewayAddrs are the addresses of the host outside on an underlay of one subnet.
func (f IPFamily) GatewayAddrs() []netip.Prefix { return f.GatewayAddrsIn(1) }

// GatewayAddrsIn are its addresses in subnet 1 or 2.
func (f IPFamily) GatewayAddrsIn(subnet int) []netip.Prefix {
	return f.keep(netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 168, byte(76 + subnet), 1}), 24),
		netip.MustParsePrefix(fmt.Sprintf("fd%d::1/64", 76+subnet)))
}

// FarAddrs are addresses of the host outside that are on no network of the nodes, and so reached by routing only.
func (f IPFamily) FarAddrs() []netip.Prefix {
	return f.keep(netip.MustParsePrefix("203.0.113.1/32"), netip.MustParsePrefix("2001:db8::1/128"))
}

// VLANs are those of the underlay in mode Bridge. 0 is the untagged one, where nodes have their addresses.
func VLANs() []uint16 { return []uint16{0, 10, 20} }

// VLANGatewayAddrs are the addresses of the host Router in a VLAN, with the mask of its subnet. Nodes have none in
// VLAN 10 (192.168.110.0/24, fd77:0:0:a10::/64) and 20 (192.168.120.0/24, fd77:0:0:a20::/64).
func (f IPFamily) VLANGatewayAddrs(vlan uint16) []netip.Prefix {
	if vlan == 0 {
		return f.GatewayAddrs()
	}
	return f.keep(netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 168, byte(100 + vlan), 1}), 24),
		netip.MustParsePrefix(fmt.Sprintf("fd77:0:0:a%d::1/64", vlan)))
}

// farNets are FarAddrs with the masks of the networks that they are in.
func (f IPFamily) farNets() []netip.Prefix {
	return f.keep(netip.MustParsePrefix("203.0.113.1/24"), netip.MustParsePrefix("2001:db8::1/64"))
}

// FarGatewayAddrs are the addresses of Router towards the host outside, in the networks of FarAddrs.
func (f IPFamily) FarGatewayAddrs() []netip.Prefix {
	return f.keep(netip.MustParsePrefix("203.0.113.254/24"), netip.MustParsePrefix("2001:db8::fe/64"))
}

func (f IPFamily) keep(all ...netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range all {
		if f.has(p.Addr()) {
			out = append(out, p)
		}
	}
	return out
}

// ControlPlaneAddrs are the addresses of the host ControlPlane.
func (f IPFamily) ControlPlaneAddrs() []netip.Prefix {
	return f.keep(netip.MustParsePrefix("192.168.77.2/24"), netip.MustParsePrefix("fd77::2/64"))
}

// ClusterCIDRs are kube-controller-manager's default ranges of podCIDRs.
func (f IPFamily) ClusterCIDRs() []netip.Prefix {
	return f.keep(netip.MustParsePrefix("10.77.0.0/16"), netip.MustParsePrefix("fd77:0:0:100::/56"))
}

// ServiceCIDRs are the API server's ranges of ClusterIPs.
func (f IPFamily) ServiceCIDRs() []netip.Prefix {
	return f.keep(netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd96::/112"))
}

// controlPlaneMAC is the number of the host ControlPlane for NodeMAC.
const controlPlaneMAC = 254

// NodeMAC is the MAC of eth0 on node number n.
func NodeMAC(n int) net.HardwareAddr { return net.HardwareAddr{0x02, 0x77, 0, 0, 0, byte(n)} }

// routerMAC is the MAC of the host Router in a VLAN.
func routerMAC(vlan uint16) net.HardwareAddr {
	return net.HardwareAddr{0x02, 0x77, 0, 0, 0xfe, byte(vlan)}
}

// outsideMAC is the MAC of the host outside in a subnet.
func outsideMAC(subnet int) net.HardwareAddr {
	return net.HardwareAddr{0x02, 0x77, 0, 0, byte(subnet - 1), 0}
}
