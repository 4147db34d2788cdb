package link

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/datapath/internal/kernel"
)

// EnsureHosts sets the host ends named in mtus up, and removes them from bridges that are not Open vSwitch's. It
// returns a description of what it changed, and the host ends whose MTU differs from mtus: a pod keeps the MTU that it
// was created with. A missing host end is handled elsewhere.
func EnsureHosts(mtus map[string]int) (changes, otherMTU []string, err error) {
	links, err := kernel.Dump(netlink.LinkList)
	if err != nil {
		return nil, nil, fmt.Errorf("listing interfaces: %w", err)
	}
	masters := map[int]netlink.Link{}
	for _, l := range links {
		masters[l.Attrs().Index] = l
	}
	var errs []error
	for _, l := range links {
		mtu, wanted := mtus[l.Attrs().Name]
		if !ours(l) || !wanted {
			continue
		}
		if l.Attrs().MTU != mtu {
			otherMTU = append(otherMTU, l.Attrs().Name)
		}
		did, err := ensureHost(l, masters[l.Attrs().MasterIndex])
		changes = append(changes, did...)
		errs = append(errs, err)
	}
	return changes, otherMTU, errors.Join(errs...)
}

func ensureHost(l, master netlink.Link) (changes []string, err error) {
	name := l.Attrs().Name
	// "openvswitch" is the kernel's datapath.
	if master != nil && master.Type() != "openvswitch" {
		if err := netlink.LinkSetNoMaster(l); err != nil {
			return changes, fmt.Errorf("removing %s from %s: %w", name, master.Attrs().Name, err)
		}
		changes = append(changes, fmt.Sprintf("removed %s from %s", name, master.Attrs().Name))
	}
	if l.Attrs().RawFlags&unix.IFF_UP == 0 {
		if err := netlink.LinkSetUp(l); err != nil {
			return changes, fmt.Errorf("setting %s up: %w", name, err)
		}
		changes = append(changes, name+" up")
	}
	return changes, nil
}
