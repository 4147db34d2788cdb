package lab

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/fairlead-cni/fairlead/test/lab/host"
)

const (
	underlayBridge = "br0"
	nodeNIC        = "eth0"
	// phyBridge carries the node's addresses on the userspace datapath: a tunnel needs its endpoint on a bridge there.
	phyBridge = "br-phy"
)

// setUpUnderlay makes the bridge that all NICs are plugged into.
func setUpUnderlay(underlay host.Host) error {
	err := underlay.Do(func() error {
		// The bridge only switches: an address of its own would answer and be counted in everybody's traces.
		for _, scope := range []string{"all", "default"} {
			if err := noIPv6(scope); err != nil {
				return err
			}
		}
		off := false
		br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: underlayBridge}, MulticastSnooping: &off}
		if err := netlink.LinkAdd(br); err != nil {
			return err
		}
		return netlink.LinkSetUp(br)
	})
	if err != nil {
		return fmt.Errorf("making the underlay's bridge: %w", err)
	}
	return nil
}

// plug gives h the NIC eth0, up, with the other end in the underlay's bridge.
func plug(underlay, h host.Host, mac net.HardwareAddr) error {
	ns, err := os.Open(filepath.Join(h.Dir, "ns", "net"))
	if err != nil {
		return fmt.Errorf("plugging %s into the underlay: %w", h.Name, err)
	}
	defer ns.Close()
	err = underlay.Do(func() error {
		br, err := netlink.LinkByName(underlayBridge)
		if err != nil {
			return err
		}
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: h.Name, MasterIndex: br.Attrs().Index},
			PeerName: nodeNIC, PeerHardwareAddr: mac, PeerNamespace: netlink.NsFd(ns.Fd())}
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		return netlink.LinkSetUp(veth)
	})
	if err == nil {
		err = h.Do(func() error { return linkUp(nodeNIC) })
	}
	if err != nil {
		return fmt.Errorf("plugging %s into the underlay: %w", h.Name, err)
	}
	return nil
}

// setUpOutside gives the host outside its addresses.
func setUpOutside(h host.Host, f IPFamily) error {
	err := h.Do(func() error {
		// Userspace Open vSwitch does not finish the checksums that an offloading sender leaves open.
		if err := txOff(nodeNIC); err != nil {
			return err
		}
		if err := addAddrs(nodeNIC, f.GatewayAddrs()); err != nil {
			return err
		}
		return addAddrs("lo", f.FarAddrs())
	})
	if err != nil {
		return fmt.Errorf("setting up the host outside: %w", err)
	}
	return nil
}

// mute makes the kernel deaf on the NIC and on the host ends of pods' veths (they are called fl..., package link).
// Userspace Open vSwitch takes copies of the frames of its ports and leaves the kernel the original: it would answer
// ARP for the node's address on every port, and route and reply a second time. The kernel's own datapath takes the
// frames away; these rules do the same, for ports that come later as well. The chains sit behind the taps that
// Open vSwitch reads from and before everything that the kernel does with a packet, defragmentation included (-400).
const mute = `
table inet lab_mute {
	chain in {
		type filter hook prerouting priority -450; policy accept
		iifname { "eth0", "fl*" } counter drop
	}
}
table arp lab_mute {
	chain in {
		type filter hook input priority -450; policy accept
		iifname { "eth0", "fl*" } counter drop
	}
}
`

// setUpNode prepares a node that is plugged in and whose Open vSwitch does not run yet.
func setUpNode(ctx context.Context, h host.Host, d Datapath, f IPFamily, n int) error {
	err := h.Do(func() error {
		// What kubeadm's preflight wants of every node.
		if err := sysctl("net/ipv4/ip_forward", "1"); err != nil {
			return err
		}
		if f != IPv4 {
			if err := sysctl("net/ipv6/conf/all/forwarding", "1", "net/ipv6/conf/default/forwarding", "1"); err != nil {
				return fmt.Errorf("%w (is IPv6 switched off on this machine? Then use --ip-family ipv4)", err)
			}
		}
		if d == System {
			return addressNode(nodeNIC, f, n)
		}
		if err := noIPv6(nodeNIC); err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, "nft", "-f", "-")
		cmd.Stdin = strings.NewReader(mute)
		return run(cmd)
	})
	if err != nil {
		return fmt.Errorf("setting up %s: %w", h.Name, err)
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
		return addressNode(phyBridge, s.IPFamily, n)
	})
	if err == nil {
		err = teachNeighbours(ctx, h, s)
	}
	if err != nil {
		return fmt.Errorf("moving %s's addresses to %s: %w", h.Name, phyBridge, err)
	}
	return nil
}

// teachNeighbours tells Open vSwitch the MACs of all nodes. The userspace datapath drops the packet for whose tunnel
// it must ask first; the kernel's datapath keeps it.
func teachNeighbours(ctx context.Context, h host.Host, s spec) error {
	ctl, err := dialVswitchd(ctx, h)
	if err != nil {
		return err
	}
	defer ctl.Close()
	if err := ctl.call("tnl/neigh/aging", "3600"); err != nil { // the longest; use makes an entry young again
		return err
	}
	for n := 1; n <= s.Nodes; n++ {
		for _, a := range s.IPFamily.NodeAddrs(n) {
			if err := ctl.call("tnl/neigh/set", phyBridge, a.Addr().String(), nodeMAC(n).String()); err != nil {
				return err
			}
		}
	}
	return nil
}
