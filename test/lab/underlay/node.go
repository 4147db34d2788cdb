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

// mute keeps the kernel from receiving on the devices %s: the host ends of pods' veths (they are named fl..., package
// link), and the NIC, which in mode Bridge the agent manages. Userspace Open vSwitch receives copies of the frames of
// its ports and the kernel the original: it would answer ARP for the node's address on every port, and route and reply
// a second time. The kernel's own datapath consumes the frames; these rules do the same, for ports that are added later
// as well. The chains are behind the taps that Open vSwitch reads from and before everything that the kernel does with
// a packet, defragmentation included (-400).
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

// OnBridge reports whether MoveToBridge moves the nodes' addresses to PhyBridge, so that AddressNode does not add them
// to the NIC.
func (u Network) OnBridge() bool { return u.Datapath == vswitch.Netdev && u.Mode == Routed }

// PrepareNode prepares a node with a NIC whose Open vSwitch does not run yet.
func (u Network) PrepareNode(ctx context.Context, h host.Host) error {
	err := h.Do(func() error {
		// As kubeadm's preflight requires on every node.
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

// AddressNode adds the addresses of node number n to its NIC, and default routes to the gateway.
func (u Network) AddressNode(h host.Host, n int) error {
	if err := h.Do(func() error { return u.addressNode(NIC, n) }); err != nil {
		return fmt.Errorf("addresses of %s: %w", h.Name, err)
	}
	return nil
}

// addressNode adds the addresses of node n to dev, sets it up, and adds default routes to the gateway.
func (u Network) addressNode(dev string, n int) error {
	if err := addAddrs(dev, u.NodeAddrs(n)); err != nil {
		return err
	}
	if err := linkUp(dev); err != nil {
		return err
	}
	return defaultRoutes(dev, u.Family.GatewayAddrsIn(u.subnet(n)))
}

// MoveToBridge moves the node's NIC and addresses to the bridge br-phy, unless they are there. Open vSwitch must run.
// It is called after every start of Open vSwitch, which may have created a new device without addresses. nodes is the
// number of nodes of the cluster.
func (u Network) MoveToBridge(ctx context.Context, h host.Host, n, nodes int) error {
	err := h.Do(func() error {
		err := host.Run(exec.CommandContext(ctx, "ovs-vsctl", "--timeout=60",
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

// TeachNeighbours adds the MACs of its subnet to the neighbour cache of Open vSwitch on node number self, in a cluster
// of that many nodes. The userspace datapath drops a packet whose tunnel endpoint it must resolve first; the kernel's
// datapath queues it.
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
	if err := ctl.Call("tnl/neigh/aging", "3600"); err != nil { // the maximum; use refreshes an entry
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
