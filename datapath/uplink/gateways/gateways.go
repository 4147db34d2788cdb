package uplink

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/datapath/internal/kernel"
)

// checkGateways returns nil if a default gateway of that interface answers ARP or neighbour discovery. The kernel asks:
// an entry that is set to PROBE is confirmed by an answer, or fails. Where there is no default gateway, nothing is
// known, and it returns ErrNoGateway.
func checkGateways(ctx context.Context, name string) error {
	link, err := findLink(name)
	if err != nil {
		return err
	}
	if link == nil {
		return fmt.Errorf("there is no interface %s", name)
	}
	gateways, err := gatewaysOf(link)
	if err != nil {
		return err
	}
	if len(gateways) == 0 {
		return ErrNoGateway
	}
	for _, ip := range gateways {
		if err := ask(link, ip); err != nil {
			return err
		}
	}
	var text []string
	for _, ip := range gateways {
		text = append(text, ip.String())
	}
	return poll(ctx, "an answer from the default gateway "+strings.Join(text, " or "), func() (bool, error) {
		known, err := kernel.Dump(func() ([]netlink.Neigh, error) { return netlink.NeighList(link.Attrs().Index, 0) })
		return slices.ContainsFunc(known, func(n netlink.Neigh) bool {
			return n.State&(unix.NUD_REACHABLE|unix.NUD_PERMANENT) != 0 && slices.ContainsFunc(gateways, n.IP.Equal)
		}), err
	})
}

// ErrNoGateway says that there is no default gateway whose answer could tell that the node is reached.
var ErrNoGateway = errors.New("there is no default gateway")

func gatewaysOf(link netlink.Link) (gateways []net.IP, err error) {
	routes, err := kernel.Dump(func() ([]netlink.Route, error) { return netlink.RouteList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("listing routes: %w", err)
	}
	for _, r := range routes {
		if r.Dst != nil && !r.Dst.IP.IsUnspecified() {
			continue
		}
		if r.LinkIndex == link.Attrs().Index && r.Gw != nil {
			gateways = append(gateways, r.Gw)
		}
		for _, hop := range r.MultiPath {
			if hop.LinkIndex == link.Attrs().Index && hop.Gw != nil {
				gateways = append(gateways, hop.Gw)
			}
		}
	}
	return gateways, nil
}

// ask has the kernel ask for a neighbour. Of one that it does not know, it has to be told first.
func ask(link netlink.Link, ip net.IP) error {
	n := netlink.Neigh{LinkIndex: link.Attrs().Index, IP: ip, State: unix.NUD_PROBE}
	known, err := kernel.Dump(func() ([]netlink.Neigh, error) { return netlink.NeighList(n.LinkIndex, 0) })
	if err != nil {
		return fmt.Errorf("listing neighbours: %w", err)
	}
	for _, k := range known {
		if k.IP.Equal(ip) && len(k.HardwareAddr) > 0 {
			if k.State == unix.NUD_PERMANENT {
				return nil
			}
			n.HardwareAddr = k.HardwareAddr
			return netlink.NeighSet(&n)
		}
	}
	n.State, n.Flags = unix.NUD_NONE, unix.NTF_USE
	if err := netlink.NeighSet(&n); err != nil {
		return fmt.Errorf("resolving the gateway %s: %w", ip, err)
	}
	return nil
}
