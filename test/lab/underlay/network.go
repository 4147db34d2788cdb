package underlay

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"

	"github.com/fairlead-cni/fairlead/internal/netaddr"
	"github.com/fairlead-cni/fairlead/test/lab/host"
	"github.com/fairlead-cni/fairlead/test/lab/vswitch"
)

// Devices on a node that may have its addresses.
const (
	NIC = "eth0"
	// PhyBridge carries the node's addresses on the userspace datapath: a tunnel needs its endpoint on a bridge there.
	PhyBridge = "br-phy"
	// UplinkBridge carries them in mode Bridge: the agent creates it.
	UplinkBridge = "br-uplink"
)

// hubBridge is the bridge of a subnet.
func hubBridge(subnet int) string { return fmt.Sprintf("br%d", subnet-1) }

// Network is the underlay of one lab.
type Network struct {
	// Hosts is the directory of all hosts of the lab (package host).
	Hosts    string
	Mode     Mode
	Datapath vswitch.Datapath
	Family   IPFamily
	// Subnets is the number of subnets in mode Routed, 1 or 2.
	Subnets int
}

// Make creates the underlay's own hosts: Hub and Outside, or in mode Bridge Switch, Router and Outside.
func (u Network) Make(ctx context.Context) error {
	if u.Mode == Bridge {
		return u.makeSwitched(ctx)
	}
	hub, err := host.Create(u.Hosts, Hub)
	if err != nil {
		return err
	}
	if err := setUpHub(hub, u.Subnets); err != nil {
		return err
	}
	outside, err := host.Create(u.Hosts, Outside)
	if err != nil {
		return err
	}
	for subnet := 1; subnet <= u.Subnets; subnet++ {
		c := cable{nic: outsideNIC(subnet), port: outsidePort(subnet), subnet: subnet, mac: outsideMAC(subnet)}
		if err := u.plug(ctx, outside, c); err != nil {
			return err
		}
	}
	return u.setUpOutside(outside)
}

// hub is the host with the other ends of all cables.
func (u Network) hub() host.Host {
	if u.Mode == Bridge {
		return host.At(u.Hosts, Switch)
	}
	return host.At(u.Hosts, Hub)
}

// setUpHub creates the bridges of all NICs, one for each subnet.
func setUpHub(hub host.Host, subnets int) error {
	err := hub.Do(func() error {
		// A bridge only switches: an address of its own would answer and appear in every trace.
		for _, scope := range []string{"all", "default"} {
			if err := noIPv6(scope); err != nil {
				return err
			}
		}
		for subnet := 1; subnet <= subnets; subnet++ {
			off := false
			br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: hubBridge(subnet)}, MulticastSnooping: &off}
			if err := netlink.LinkAdd(br); err != nil {
				return err
			}
			if err := netlink.LinkSetUp(br); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("making the underlay's bridges: %w", err)
	}
	return nil
}

// cable is a NIC with its other end, named port, in the underlay: in the bridge of a subnet, or in mode Bridge in the
// switch, as access port of one VLAN or trunk port of several.
type cable struct {
	nic, port string
	subnet    int
	vlans     []uint16
	mac       net.HardwareAddr
}

// nodeCable is the cable of node number n.
func (u Network) nodeCable(n int) cable {
	return cable{nic: NIC, port: NodeName(n), subnet: u.subnet(n), vlans: VLANs(), mac: NodeMAC(n)}
}

// PlugNode creates the NIC of node number n, up.
func (u Network) PlugNode(ctx context.Context, h host.Host, n int) error {
	return u.plug(ctx, h, u.nodeCable(n))
}

// UnplugNode deletes the NIC of node number n.
func (u Network) UnplugNode(ctx context.Context, n int) error { return u.unplug(ctx, u.nodeCable(n)) }

// PlugControlPlane creates the NIC, addresses and routes of the host ControlPlane.
func (u Network) PlugControlPlane(ctx context.Context, h host.Host) error {
	c := cable{nic: NIC, port: ControlPlane, subnet: 1, vlans: []uint16{0}, mac: NodeMAC(controlPlaneMAC)}
	if err := u.plug(ctx, h, c); err != nil {
		return err
	}
	err := h.Do(func() error {
		// As on the host outside, setUpOutside.
		if err := txOff(NIC); err != nil {
			return err
		}
		if err := addAddrs(NIC, u.Family.ControlPlaneAddrs()); err != nil {
			return err
		}
		return defaultRoutes(NIC, u.Family.GatewayAddrs())
	})
	if err != nil {
		return fmt.Errorf("setting up the host %s: %w", h.Name, err)
	}
	return nil
}

// plug creates the NIC of the cable on h, up.
func (u Network) plug(ctx context.Context, h host.Host, c cable) error {
	err := connect(u.hub(), c.port, h, c.nic, c.mac)
	if err == nil {
		err = u.hub().Do(func() error {
			if u.Mode == Bridge {
				return addSwitchPort(ctx, c)
			}
			return enslave(c.port, hubBridge(c.subnet))
		})
	}
	if err != nil {
		return fmt.Errorf("plugging %s into the underlay: %w", h.Name, err)
	}
	return nil
}

// connect creates a cable between two hosts, with the names of its ends. b's end has the MAC.
func connect(a host.Host, nameA string, b host.Host, nameB string, mac net.HardwareAddr) error {
	ns, err := os.Open(filepath.Join(b.Dir, "ns", "net"))
	if err != nil {
		return err
	}
	defer ns.Close()
	err = a.Do(func() error {
		err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: nameA},
			PeerName: nameB, PeerHardwareAddr: mac, PeerNamespace: netlink.NsFd(ns.Fd())})
		if err != nil {
			return err
		}
		return linkUp(nameA)
	})
	if err != nil {
		return err
	}
	return b.Do(func() error { return linkUp(nameB) })
}

func enslave(port, bridge string) error {
	br, err := netlink.LinkByName(bridge)
	if err != nil {
		return err
	}
	link, err := netlink.LinkByName(port)
	if err != nil {
		return err
	}
	return netlink.LinkSetMaster(link, br)
}

// outsideNIC is the host outside's NIC in a subnet.
func outsideNIC(subnet int) string { return fmt.Sprintf("eth%d", subnet-1) }

// outsidePort is its other end.
func outsidePort(subnet int) string {
	if subnet == 1 {
		return Outside
	}
	return fmt.Sprint(Outside, subnet)
}

// setUpOutside adds the addresses of the host outside. It is the router between subnets.
func (u Network) setUpOutside(h host.Host) error {
	err := h.Do(func() error {
		for subnet := 1; subnet <= u.Subnets; subnet++ {
			// Userspace Open vSwitch does not complete checksums that a sender with offload leaves incomplete.
			if err := txOff(outsideNIC(subnet)); err != nil {
				return err
			}
			if err := addAddrs(outsideNIC(subnet), u.Family.GatewayAddrsIn(subnet)); err != nil {
				return err
			}
		}
		if u.Subnets > 1 {
			if err := forward(u.Family); err != nil {
				return err
			}
		}
		return addAddrs("lo", u.Family.FarAddrs())
	})
	if err != nil {
		return fmt.Errorf("setting up the host outside: %w", err)
	}
	return nil
}

// RoutePods adds routes to the podCIDRs of node n on the router, as noEncap mode requires of an underlay's routers.
func (u Network) RoutePods(n int) error {
	router := host.At(u.Hosts, Outside)
	if u.Mode == Bridge {
		router = host.At(u.Hosts, Router)
	}
	err := router.Do(func() error {
		for _, cidr := range u.Family.PodCIDRs(n) {
			for _, a := range u.NodeAddrs(n) {
				if a.Addr().Is4() != cidr.Addr().Is4() {
					continue
				}
				if err := netlink.RouteReplace(&netlink.Route{Gw: a.Addr().AsSlice(), Dst: netaddr.IPNet(cidr)}); err != nil {
					return fmt.Errorf("%s by %s: %w", cidr, a.Addr(), err)
				}
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("routes of %s: %w", router.Name, err)
	}
	return nil
}
