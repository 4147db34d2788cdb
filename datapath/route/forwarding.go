package route

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/fairlead-cni/fairlead/datapath/internal/kernel"
)

// EnableForwarding enables forwarding for the given families and returns a description of what it changed. It never
// disables forwarding: others may rely on it.
//
// When IPv6 forwarding is enabled, the kernel drops the default routes it learned from router advertisements and
// ignores further ones, on every interface with accept_ra 1 (Documentation/networking/ip-sysctl.rst): the node would be
// unreachable. Such interfaces get accept_ra 2 before, and NICs added later when this is called again.
func EnableForwarding(ipv4, ipv6 bool) (changes []string, err error) {
	if ipv4 {
		changed, err := kernel.SetSysctl("1", "ipv4", "ip_forward")
		if err != nil {
			return changes, fmt.Errorf("enabling IPv4 forwarding: %w", err)
		}
		if changed {
			changes = append(changes, "IPv4 forwarding on")
		}
	}
	if ipv6 {
		did, err := enableForwarding6()
		changes = append(changes, did...)
		if err != nil {
			return changes, fmt.Errorf("enabling IPv6 forwarding: %w", err)
		}
	}
	return changes, nil
}

func enableForwarding6() (changes []string, err error) {
	if !kernel.HasIPv6() {
		return nil, errors.New("IPv6 is disabled in the kernel")
	}
	on, err := kernel.Sysctl("ipv6", "conf", "all", "forwarding")
	if err != nil {
		return nil, err
	}
	if on == "1" {
		return keepLaterNICs()
	}
	interfaces, err := os.ReadDir("/proc/sys/net/ipv6/conf")
	if err != nil {
		return nil, err
	}
	for _, i := range interfaces {
		if i.Name() == "all" || i.Name() == "default" {
			continue
		}
		changed, err := keepRouterAdvertisements(i.Name(), "0")
		if err != nil && !errors.Is(err, os.ErrNotExist) { // a pod's veth may just have been deleted
			return changes, err
		}
		if changed {
			changes = append(changes, i.Name()+" accept_ra 2")
		}
	}
	// Has no effect except to record that Fairlead enabled forwarding.
	if _, err := kernel.SetSysctl("2", "ipv6", "conf", "all", "accept_ra"); err != nil {
		return changes, err
	}
	if _, err := kernel.SetSysctl("1", "ipv6", "conf", "all", "forwarding"); err != nil {
		return changes, err
	}
	return append(changes, "IPv6 forwarding on"), nil
}

// keepLaterNICs sets accept_ra on NICs that were added after Fairlead enabled forwarding. A node that forwarded before
// gets its routes another way. Interfaces of pods and containers are not NICs: their advertisements were never
// accepted.
func keepLaterNICs() (changes []string, err error) {
	ours, err := kernel.Sysctl("ipv6", "conf", "all", "accept_ra")
	if err != nil || ours != "2" {
		return nil, err
	}
	links, err := kernel.Dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("listing interfaces: %w", err)
	}
	for _, l := range links {
		if !slices.Contains([]string{"device", "bond", "team", "vlan"}, l.Type()) {
			continue
		}
		name := l.Attrs().Name
		changed, err := keepRouterAdvertisements(name, "1")
		if err != nil && !errors.Is(err, os.ErrNotExist) { // without IPv6, or just deleted
			return changes, err
		}
		if changed {
			changes = append(changes, name+" accept_ra 2")
		}
	}
	return changes, nil
}

// keepRouterAdvertisements sets accept_ra to 2 on an interface that has accept_ra 1 and the given forwarding: 0 where
// advertisements are accepted now, 1 where they would be without forwarding.
func keepRouterAdvertisements(ifName, forwarding string) (changed bool, err error) {
	accept, err := kernel.Sysctl("ipv6", "conf", ifName, "accept_ra")
	if err != nil || accept != "1" {
		return false, err
	}
	forwards, err := kernel.Sysctl("ipv6", "conf", ifName, "forwarding")
	if err != nil || forwards != forwarding {
		return false, err
	}
	return kernel.SetSysctl("2", "ipv6", "conf", ifName, "accept_ra")
}
