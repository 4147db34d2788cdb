package route

import (
	"errors"
	"fmt"
	"os"

	"github.com/fairlead-cni/fairlead/datapath/internal/kernel"
)

// EnableForwarding has the kernel forward packets of the given families and
// returns what it changed, in words. It never switches forwarding off: others
// may rely on it.
//
// A kernel that starts to forward IPv6 forgets the default routes it learned
// from router advertisements and heeds no further ones, on every interface
// whose accept_ra is 1 (Documentation/networking/ip-sysctl.rst): the node
// would be lost. Such interfaces get accept_ra 2 before.
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
	if err != nil || on == "1" {
		return nil, err
	}
	interfaces, err := os.ReadDir("/proc/sys/net/ipv6/conf")
	if err != nil {
		return nil, err
	}
	for _, i := range interfaces {
		if i.Name() == "all" || i.Name() == "default" {
			continue
		}
		changed, err := keepRouterAdvertisements(i.Name())
		if err != nil && !errors.Is(err, os.ErrNotExist) { // a pod's veth may just have gone
			return changes, err
		}
		if changed {
			changes = append(changes, i.Name()+" accept_ra 2")
		}
	}
	if _, err := kernel.SetSysctl("1", "ipv6", "conf", "all", "forwarding"); err != nil {
		return changes, err
	}
	return append(changes, "IPv6 forwarding on"), nil
}

// keepRouterAdvertisements sets accept_ra to 2 where advertisements count now.
// They don't where the interface forwards already.
func keepRouterAdvertisements(ifName string) (changed bool, err error) {
	accept, err := kernel.Sysctl("ipv6", "conf", ifName, "accept_ra")
	if err != nil || accept != "1" {
		return false, err
	}
	forwards, err := kernel.Sysctl("ipv6", "conf", ifName, "forwarding")
	if err != nil || forwards != "0" {
		return false, err
	}
	return kernel.SetSysctl("2", "ipv6", "conf", ifName, "accept_ra")
}
