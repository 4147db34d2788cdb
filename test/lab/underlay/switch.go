package underlay

import (
	"context"
	"fmt"
	"os/exec"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/fairlead-cni/fairlead/test/lab/host"
	"github.com/fairlead-cni/fairlead/test/lab/vswitch"
)

// switchBridge is the switch of mode Bridge.
const switchBridge = "br0"

// makeSwitched creates the hosts Switch, Router and Outside.
func (u Network) makeSwitched(ctx context.Context) error {
	hosts := map[string]host.Host{}
	for _, name := range []string{Switch, Router, Outside} {
		h, err := host.Create(u.Hosts, name)
		if err != nil {
			return err
		}
		hosts[name] = h
	}
	if err := setUpSwitch(ctx, hosts[Switch], u.Datapath); err != nil {
		return err
	}
	if err := hosts[Router].Do(noDAD); err != nil {
		return fmt.Errorf("setting up the host %s: %w", Router, err)
	}
	for _, vlan := range VLANs() {
		c := cable{nic: routerNIC(vlan), port: routerPort(vlan), vlans: []uint16{vlan}, mac: routerMAC(vlan)}
		if err := u.plug(ctx, hosts[Router], c); err != nil {
			return err
		}
	}
	if err := connect(hosts[Router], Outside, hosts[Outside], NIC, outsideMAC(1)); err != nil {
		return fmt.Errorf("connecting %s and %s: %w", Router, Outside, err)
	}
	if err := setUpRouter(hosts[Router], u.Family); err != nil {
		return err
	}
	return setUpBehindRouter(hosts[Outside], u.Family)
}

// setUpSwitch starts an Open vSwitch that only switches, with the datapath of the nodes. That also provides VLANs on a
// kernel that has neither 8021q nor bridges with VLAN filters.
func setUpSwitch(ctx context.Context, h host.Host, d vswitch.Datapath) error {
	err := h.Do(func() error {
		// As in setUpHub. It also keeps the kernel from acting on frames that userspace Open vSwitch only copies.
		for _, scope := range []string{"all", "default"} {
			if err := noIPv6(scope); err != nil {
				return err
			}
		}
		if err := vswitch.StartOVSDB(ctx, h.Name); err != nil {
			return err
		}
		if err := vswitch.StartVswitchd(ctx, d); err != nil {
			return err
		}
		return host.Run(exec.CommandContext(ctx, "ovs-vsctl", "--timeout=60", "add-br", switchBridge,
			"--", "set", "Bridge", switchBridge, "datapath_type="+string(d), "fail_mode=standalone"))
	})
	if err != nil {
		return fmt.Errorf("setting up the host %s: %w", h.Name, err)
	}
	return nil
}

// addSwitchPort adds the existing end of a cable to the switch. It runs on the host Switch. VLAN 0 means untagged
// frames in Open vSwitch (ovs-vswitchd.conf.db(5), VLAN Configuration).
func addSwitchPort(ctx context.Context, c cable) error {
	vlans := []string{fmt.Sprintf("tag=%d", c.vlans[0]), "vlan_mode=access"}
	if len(c.vlans) > 1 {
		all := strings.Trim(strings.ReplaceAll(fmt.Sprint(c.vlans), " ", ","), "[]")
		vlans = []string{"trunks=" + all, "vlan_mode=trunk"}
	}
	args := append([]string{"--timeout=60", "add-port", switchBridge, c.port, "--", "set", "Port", c.port}, vlans...)
	if err := host.Run(exec.CommandContext(ctx, "ovs-vsctl", args...)); err != nil {
		return err
	}
	return deepQueues()
}

// unplug removes the cable from the underlay: both ends are deleted.
func (u Network) unplug(ctx context.Context, c cable) error {
	err := u.hub().Do(func() error {
		if u.Mode == Bridge {
			err := host.Run(exec.CommandContext(ctx, "ovs-vsctl", "--timeout=60", "--if-exists", "del-port", switchBridge, c.port))
			if err != nil {
				return err
			}
		}
		link, err := netlink.LinkByName(c.port)
		if err != nil {
			return err
		}
		return netlink.LinkDel(link)
	})
	if err != nil {
		return fmt.Errorf("unplugging %s: %w", c.port, err)
	}
	return nil
}

// routerNIC is the NIC of the host Router in a VLAN: eth0, eth10, eth20. Its NIC towards Outside is named Outside.
func routerNIC(vlan uint16) string { return fmt.Sprint("eth", vlan) }

// routerPort is its other end, an access port.
func routerPort(vlan uint16) string { return fmt.Sprint(Router, vlan) }

// setUpRouter configures the host Router to route between the VLANs and the host outside.
func setUpRouter(h host.Host, f IPFamily) error {
	err := h.Do(func() error {
		if err := forward(f); err != nil {
			return err
		}
		for _, vlan := range VLANs() {
			if err := txOff(routerNIC(vlan)); err != nil { // as on the host outside, setUpOutside
				return err
			}
			if err := addAddrs(routerNIC(vlan), f.VLANGatewayAddrs(vlan)); err != nil {
				return err
			}
		}
		return addAddrs(Outside, f.FarGatewayAddrs())
	})
	if err != nil {
		return fmt.Errorf("setting up the host %s: %w", h.Name, err)
	}
	return nil
}

// setUpBehindRouter adds the addresses of the host outside, and its return routes.
func setUpBehindRouter(h host.Host, f IPFamily) error {
	err := h.Do(func() error {
		if err := addAddrs(NIC, f.farNets()); err != nil {
			return err
		}
		return defaultRoutes(NIC, f.FarGatewayAddrs())
	})
	if err != nil {
		return fmt.Errorf("setting up the host %s: %w", h.Name, err)
	}
	return nil
}
