package route

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/datapath/internal/kernel"
)

// RemoveAll removes all of Fairlead's routes and returns how many there were; with dryRun it only counts them. The
// neighbour entries are deleted with the gateway.
func RemoveAll(dryRun bool) (int, error) {
	routes, err := kernel.Dump(ours)
	if err != nil {
		return 0, fmt.Errorf("listing routes: %w", err)
	}
	if dryRun {
		return len(routes), nil
	}
	for _, r := range routes {
		if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			return 0, fmt.Errorf("removing the route to %s: %w", r.Dst, err)
		}
	}
	return len(routes), nil
}
