package lab

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/fairlead-cni/fairlead/test/lab/host"
)

const (
	nodeNIC = "eth0"
	// phyBridge carries the node's addresses on the userspace datapath: a tunnel needs its endpoint on a bridge there.
	phyBridge = "br-phy"
	// uplinkBridge carries them in mode Bridge: the agent makes it.
	uplinkBridge = "br-uplink"
)

// underlayBridge is the bridge of a subnet.
func underlayBridge(subnet int) string { return fmt.Sprintf("br%d", subnet-1) }

// setUpUnderlay makes the bridges that all NICs are plugged into, one for each subnet.
func setUpUnderlay(underlay host.Host, subnets int) error {
	err := underlay.Do(func() error {
		// A bridge only switches: an address of its own would answer and be counted in everybody's traces.
		for _, scope := range []string{"all", "default"} {
			if err := noIPv6(scope); err != nil {
				return err
			}
		}
		for subnet := 1; subnet <= subnets; subnet++ {
			off := false
			br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: underlayBridge(subnet)}, MulticastSnooping: &off}
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

// nodeCable is that of node number n.
func nodeCable(s spec, n int) cable {
	return cable{nic: nodeNIC, port: NodeName(n), subnet: s.subnet(n), vlans: VLANs(), mac: nodeMAC(n)}
}

// plug gives h the NIC of the cable, up.
func (l *Lab) plug(ctx context.Context, h host.Host, c cable) error {
	underlay := host.At(l.path("hosts"), Underlay)
	if l.spec.Mode == Bridge {
		underlay = host.At(l.path("hosts"), Switch)
	}
	err := connect(underlay, c.port, h, c.nic, c.mac)
	if err == nil {
		err = underlay.Do(func() error {
			if l.spec.Mode == Bridge {
				return addSwitchPort(ctx, c)
			}
			return enslave(c.port, underlayBridge(c.subnet))
		})
	}
	if err != nil {
		return fmt.Errorf("plugging %s into the underlay: %w", h.Name, err)
	}
	return nil
}

// connect lays a cable between two hosts, which name their ends of it. b's end has the MAC.
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

// setUpOutside gives the host outside its addresses. It is the router between subnets.
func setUpOutside(h host.Host, s spec) error {
	err := h.Do(func() error {
		for subnet := 1; subnet <= s.Subnets; subnet++ {
			// Userspace Open vSwitch does not finish the checksums that an offloading sender leaves open.
			if err := txOff(outsideNIC(subnet)); err != nil {
				return err
			}
			if err := addAddrs(outsideNIC(subnet), s.IPFamily.GatewayAddrsIn(subnet)); err != nil {
				return err
			}
		}
		if s.Subnets > 1 {
			if err := forward(s.IPFamily); err != nil {
				return err
			}
		}
		return addAddrs("lo", s.IPFamily.FarAddrs())
	})
	if err != nil {
		return fmt.Errorf("setting up the host outside: %w", err)
	}
	return nil
}

// mute makes the kernel deaf on the devices of %s: the host ends of pods' veths (they are called fl..., package link),
// and the NIC, which in mode Bridge is the agent's business.
// Userspace Open vSwitch takes copies of the frames of its ports and leaves the kernel the original: it would answer
// ARP for the node's address on every port, and route and reply a second time. The kernel's own datapath takes the
// frames away; these rules do the same, for ports that come later as well. The chains sit behind the taps that
// Open vSwitch reads from and before everything that the kernel does with a packet, defragmentation included (-400).
const mute = `
table inet lab_mute {
	chain in {
		type filter hook prerouting priority -450; policy accept
		iifname %[1]s counter drop
	}
}
table arp lab_mute {
	chain in {
		type filter hook input priority -450; policy accept
		iifname %[1]s counter drop
	}
}
`

// onBridge says that the lab puts the nodes' addresses on phyBridge, and not on the NIC.
func (s spec) onBridge() bool { return s.Datapath == Netdev && s.Mode == Routed }

// setUpNode prepares a node that is plugged in and whose Open vSwitch does not run yet.
func setUpNode(ctx context.Context, h host.Host, s spec) error {
	err := h.Do(func() error {
		// What kubeadm's preflight wants of every node.
		if err := forward(s.IPFamily); err != nil {
			return err
		}
		if s.Datapath == System {
			return nil
		}
		devices, err := `{ "eth0", "fl*" }`, error(nil)
		if s.onBridge() {
			err = noIPv6(nodeNIC)
		} else {
			devices, err = `{ "fl*" }`, txOff(nodeNIC) // for the switch, as on the host outside
		}
		if err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, "nft", "-f", "-")
		cmd.Stdin = strings.NewReader(fmt.Sprintf(mute, devices))
		return run(cmd)
	})
	if err != nil {
		return fmt.Errorf("setting up %s: %w", h.Name, err)
	}
	return nil
}

// routePods teaches the router the way to the podCIDRs of node n, as noEncap mode wants it of an underlay's
// routers.
func routePods(router host.Host, s spec, n int) error {
	err := router.Do(func() error {
		for _, cidr := range s.IPFamily.PodCIDRs(n) {
			for _, a := range s.nodeAddrs(n) {
				if a.Addr().Is4() != cidr.Addr().Is4() {
					continue
				}
				if err := netlink.RouteReplace(&netlink.Route{Gw: a.Addr().AsSlice(), Dst: ipNet(cidr)}); err != nil {
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

// moveToBridge puts the node's NIC and addresses on the bridge br-phy, as far as they are not there. Open vSwitch must
// run. It is done after every start of Open vSwitch, which may have made a new device without addresses.
func moveToBridge(ctx context.Context, h host.Host, s spec, n int) error {
	err := h.Do(func() error {
		err := run(exec.CommandContext(ctx, "ovs-vsctl", "--timeout=10",
			"--", "--may-exist", "add-br", phyBridge,
			"--", "set", "Bridge", phyBridge, "datapath_type=netdev", "fail_mode=standalone",
			fmt.Sprintf("other_config:hwaddr=%q", nodeMAC(n)),
			"--", "--may-exist", "add-port", phyBridge, nodeNIC))
		if err != nil {
			return err
		}
		return addressNode(phyBridge, s, n)
	})
	if err == nil {
		err = teachNeighbours(ctx, h, s, n)
	}
	if err != nil {
		return fmt.Errorf("moving %s's addresses to %s: %w", h.Name, phyBridge, err)
	}
	return nil
}

// teachNeighbours tells Open vSwitch of node number self the MACs of its subnet. The userspace datapath drops a packet
// for whose tunnel it must ask first; the kernel's datapath keeps it.
func teachNeighbours(ctx context.Context, h host.Host, s spec, self int) error {
	subnet, bridge, gateway := s.subnet(self), phyBridge, outsideMAC(s.subnet(self))
	if s.Mode == Bridge {
		bridge, gateway = uplinkBridge, routerMAC(0)
	}
	ctl, err := dialVswitchd(ctx, h)
	if err != nil {
		return err
	}
	defer ctl.Close()
	if err := ctl.call("tnl/neigh/aging", "3600"); err != nil { // the longest; use makes an entry young again
		return err
	}
	teach := func(addrs []netip.Prefix, mac net.HardwareAddr) error {
		for _, a := range addrs {
			if err := ctl.call("tnl/neigh/set", bridge, a.Addr().String(), mac.String()); err != nil {
				return err
			}
		}
		return nil
	}
	for n := 1; n <= s.Nodes; n++ {
		if s.subnet(n) != subnet {
			continue
		}
		if err := teach(s.nodeAddrs(n), nodeMAC(n)); err != nil {
			return err
		}
	}
	return teach(s.IPFamily.GatewayAddrsIn(subnet), gateway)
}
