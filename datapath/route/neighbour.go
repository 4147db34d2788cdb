package route

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/datapath/internal/kernel"
)

// applyNeighbours gives the virtual next hop of each family that has routes by
// way of link its permanent entry there, removes all other permanent entries,
// and returns how many it changed.
func applyNeighbours(h *netlink.Handle, link netlink.Link, want table) (changed int, err error) {
	mac, index := VirtualMAC(), link.Attrs().Index
	missing := map[netip.Addr]bool{}
	for k, r := range want {
		if r.LinkIndex == index {
			missing[virtualNextHop(k.dst)] = true
		}
	}
	have, err := kernel.Dump(func() ([]netlink.Neigh, error) { return h.NeighList(index, netlink.FAMILY_ALL) })
	if err != nil {
		return 0, fmt.Errorf("listing neighbours: %w", err)
	}
	for _, n := range have {
		ip, _ := netip.AddrFromSlice(n.IP)
		ip = ip.Unmap()
		switch {
		case n.State&netlink.NUD_PERMANENT == 0 || n.Flags&netlink.NTF_PROXY != 0:
		case missing[ip] && n.HardwareAddr.String() == mac.String():
			delete(missing, ip)
		case !missing[ip]:
			if err := h.NeighDel(&n); err != nil && !errors.Is(err, unix.ENOENT) {
				return changed, fmt.Errorf("removing neighbour %s: %w", ip, err)
			}
			changed++
		}
	}
	for ip := range missing {
		n := netlink.Neigh{LinkIndex: index, IP: ip.AsSlice(), HardwareAddr: mac[:], State: netlink.NUD_PERMANENT}
		if err := h.NeighSet(&n); err != nil {
			return changed, fmt.Errorf("setting neighbour %s: %w", ip, err)
		}
		changed++
	}
	return changed, nil
}
