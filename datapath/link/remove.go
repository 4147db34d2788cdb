package link

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/fairlead-cni/fairlead/datapath/internal/kernel"
)

// RemoveAll removes all our veths, and with them the pods' interfaces, and returns their names; with dryRun it only
// lists them.
func RemoveAll(dryRun bool) (names []string, err error) {
	links, err := kernel.Dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("listing interfaces: %w", err)
	}
	var errs []error
	for _, l := range links {
		if !ours(l) && !retired(l) {
			continue
		}
		if !dryRun {
			if err := remove(l); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", l.Attrs().Name, err))
				continue
			}
		}
		names = append(names, l.Attrs().Name)
	}
	return names, errors.Join(errs...)
}
