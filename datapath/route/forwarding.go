package route

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/fairlead-cni/fairlead/datapath/internal/kernel"
)

// EnableForwarding has the kernel forward packets of the given families and
// returns what it changed, in words. It never switches forwarding off: others
// may rely on it.
//
// A kernel that starts to forward IPv6 forgets the default routes it learned
// from router advertisements and heeds no further ones, on every interface
// whose accept_ra is 1 (Documentation/networking/ip-sysctl.rst): the node
// would be lost. Such interfaces get accept_ra 2 before, and NICs that come
// later as soon as this is called again.
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
		if err != nil && !errors.Is(err, os.ErrNotExist) { // a pod's veth may just have gone
			return changes, err
		}
		if changed {
			changes = append(changes, i.Name()+" accept_ra 2")
		}
	}
	// Of no effect but to tell later that it was Fairlead who switched forwarding on.
	if _, err := kernel.SetSysctl("2", "ipv6", "conf", "all", "accept_ra"); err != nil {
		return changes, err
	}
	if _, err := kernel.SetSysctl("1", "ipv6", "conf", "all", "forwarding"); err != nil {
		return changes, err
	}
	return append(changes, "IPv6 forwarding on"), nil
}

// keepLaterNICs does for NICs that came after forwarding was switched on what was done for the others then. A node that
// forwarded before has other ways to its routes. Interfaces of pods and containers are no NICs: what they advertise has
// never counted.
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
		if err != nil && !errors.Is(err, os.ErrNotExist) { // without IPv6, or just gone
			return changes, err
		}
		if changed {
			changes = append(changes, name+" accept_ra 2")
		}
	}
	return changes, nil
}

// keepRouterAdvertisements sets accept_ra to 2 on an interface that has it 1 and the given forwarding: 0 where
// advertisements count now, 1 where they would but for forwarding.
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
