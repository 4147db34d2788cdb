package underlay

import (
	"fmt"
	"net/netip"
	"os"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/internal/netaddr"
)

// defaultRoutes adds default routes to the gateways.
func defaultRoutes(dev string, gateways []netip.Prefix) error {
	link, err := netlink.LinkByName(dev)
	if err != nil {
		return err
	}
	for _, gw := range gateways {
		all := netip.PrefixFrom(gw.Addr(), 0).Masked()
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: gw.Addr().AsSlice(), Dst: netaddr.IPNet(all)}
		if err := netlink.RouteReplace(route); err != nil {
			return fmt.Errorf("default route by %s: %w", gw.Addr(), err)
		}
	}
	return nil
}

func addAddrs(dev string, addrs []netip.Prefix) error {
	link, err := netlink.LinkByName(dev)
	if err != nil {
		return fmt.Errorf("%s: %w", dev, err)
	}
	for _, a := range addrs {
		// No duplicate address detection: the addresses are ours, and must answer at once.
		addr := &netlink.Addr{IPNet: netaddr.IPNet(a), Flags: unix.IFA_F_NODAD}
		if err := netlink.AddrReplace(link, addr); err != nil {
			return fmt.Errorf("address %s on %s: %w", a, dev, err)
		}
	}
	return nil
}

func linkUp(dev string) error {
	link, err := netlink.LinkByName(dev)
	if err == nil {
		err = netlink.LinkSetUp(link)
	}
	if err != nil {
		return fmt.Errorf("setting %s up: %w", dev, err)
	}
	return nil
}

func txOff(dev string) error {
	tool, err := ethtool.NewEthtool()
	if err != nil {
		return err
	}
	defer tool.Close()
	if err := tool.Change(dev, map[string]bool{"tx-checksum-ip-generic": false}); err != nil {
		return fmt.Errorf("switching tx checksum offload of %s off: %w", dev, err)
	}
	return nil
}

// sysctl sets pairs of key and value in the namespaces of the calling thread.
func sysctl(pairs ...string) error {
	for i := 0; i < len(pairs); i += 2 {
		if err := os.WriteFile("/proc/sys/"+pairs[i], []byte(pairs[i+1]), 0o644); err != nil {
			return fmt.Errorf("setting sysctl %s: %w", pairs[i], err)
		}
	}
	return nil
}

// forward enables forwarding.
func forward(f IPFamily) error {
	if err := sysctl("net/ipv4/ip_forward", "1"); err != nil {
		return err
	}
	if f == IPv4 {
		return nil
	}
	if err := sysctl("net/ipv6/conf/all/forwarding", "1", "net/ipv6/conf/default/forwarding", "1"); err != nil {
		return fmt.Errorf("%w (is IPv6 switched off on this machine? Then use --ip-family ipv4)", err)
	}
	return nil
}

// noIPv6 disables IPv6 on a device, or on "all" or "default"; it does nothing on a kernel without IPv6.
func noIPv6(scope string) error {
	if !exists("/proc/sys/net/ipv6") {
		return nil
	}
	return sysctl("net/ipv6/conf/"+scope+"/disable_ipv6", "1")
}

// noDAD disables duplicate address detection of link-local addresses on later devices. A router's neighbour
// solicitations use those: otherwise the packets that it forwards in its first second wait.
func noDAD() error {
	if !exists("/proc/sys/net/ipv6") {
		return nil
	}
	return sysctl("net/ipv6/conf/default/accept_dad", "0")
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
