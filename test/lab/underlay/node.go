package underlay

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"

	"github.com/fairlead-cni/fairlead/test/lab/host"
	"github.com/fairlead-cni/fairlead/test/lab/vswitch"
)

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

// OnBridge says that MoveToBridge puts the nodes' addresses on PhyBridge, and AddressNode does not put them on the NIC.
func (u Network) OnBridge() bool { return u.Datapath == vswitch.Netdev && u.Mode == Routed }

// PrepareNode prepares a node that is plugged in and whose Open vSwitch does not run yet.
func (u Network) PrepareNode(ctx context.Context, h host.Host) error {
	err := h.Do(func() error {
		// What kubeadm's preflight wants of every node.
		if err := forward(u.Family); err != nil {
			return err
		}
		if u.Datapath == vswitch.System {
			return nil
		}
		devices, err := `{ "eth0", "fl*" }`, error(nil)
		if u.OnBridge() {
			err = noIPv6(NIC)
		} else {
			devices, err = `{ "fl*" }`, txOff(NIC) // for the switch, as on the host outside
		}
		if err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, "nft", "-f", "-")
		cmd.Stdin = strings.NewReader(fmt.Sprintf(mute, devices))
		return host.Run(cmd)
	})
	if err != nil {
		return fmt.Errorf("setting up %s: %w", h.Name, err)
	}
	return nil
}

// AddressNode gives the NIC of node number n its addresses, and routes everything else to the gateway.
func (u Network) AddressNode(h host.Host, n int) error {
	if err := h.Do(func() error { return u.addressNode(NIC, n) }); err != nil {
		return fmt.Errorf("addresses of %s: %w", h.Name, err)
	}
	return nil
}

// addressNode gives dev the addresses of node n, sets it up, and routes everything else to the gateway.
func (u Network) addressNode(dev string, n int) error {
	if err := addAddrs(dev, u.NodeAddrs(n)); err != nil {
		return err
	}
	if err := linkUp(dev); err != nil {
		return err
	}
	return defaultRoutes(dev, u.Family.GatewayAddrsIn(u.subnet(n)))
}

// MoveToBridge puts the node's NIC and addresses on the bridge br-phy, as far as they are not there. Open vSwitch must
// run. It is done after every start of Open vSwitch, which may have made a new device without addresses.
// nodes is how many nodes the cluster has.
func (u Network) MoveToBridge(ctx context.Context, h host.Host, n, nodes int) error {
	err := h.Do(func() error {
		err := host.Run(exec.CommandContext(ctx, "ovs-vsctl", "--timeout=10",
			"--", "--may-exist", "add-br", PhyBridge,
			"--", "set", "Bridge", PhyBridge, "datapath_type=netdev", "fail_mode=standalone",
			fmt.Sprintf("other_config:hwaddr=%q", NodeMAC(n)),
			"--", "--may-exist", "add-port", PhyBridge, NIC))
		if err != nil {
			return err
		}
		return u.addressNode(PhyBridge, n)
	})
	if err == nil {
		err = u.TeachNeighbours(ctx, h, n, nodes)
	}
	if err != nil {
		return fmt.Errorf("moving %s's addresses to %s: %w", h.Name, PhyBridge, err)
	}
	return nil
}

// TeachNeighbours tells Open vSwitch of node number self the MACs of its subnet, in a cluster of that many nodes. The
// userspace datapath drops a packet for whose tunnel it must ask first; the kernel's datapath keeps it.
func (u Network) TeachNeighbours(ctx context.Context, h host.Host, self, nodes int) error {
	subnet, bridge, gateway := u.subnet(self), PhyBridge, outsideMAC(u.subnet(self))
	if u.Mode == Bridge {
		bridge, gateway = UplinkBridge, routerMAC(0)
	}
	ctl, err := vswitch.Dial(ctx, h)
	if err != nil {
		return err
	}
	defer ctl.Close()
	if err := ctl.Call("tnl/neigh/aging", "3600"); err != nil { // the longest; use makes an entry young again
		return err
	}
	teach := func(addrs []netip.Prefix, mac net.HardwareAddr) error {
		for _, a := range addrs {
			if err := ctl.Call("tnl/neigh/set", bridge, a.Addr().String(), mac.String()); err != nil {
				return err
			}
		}
		return nil
	}
	for n := 1; n <= nodes; n++ {
		if u.subnet(n) != subnet {
			continue
		}
		if err := teach(u.NodeAddrs(n), NodeMAC(n)); err != nil {
			return err
		}
	}
	return teach(u.Family.GatewayAddrsIn(subnet), gateway)
}
