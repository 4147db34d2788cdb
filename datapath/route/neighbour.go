package route

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/internal/kernel"
)

// neighboursOf returns the permanent entries on the gateway that routes need: the virtual next hop of each family with
// routes through it, and bridged pods.
func neighboursOf(d Desired) map[netip.Addr]api.MAC {
	want := map[netip.Addr]api.MAC{}
	for _, r := range d.Routes {
		switch {
		case r.MAC != (api.MAC{}):
			want[r.Dst.Addr()] = r.MAC
		case !r.Via.IsValid():
			want[virtualNextHop(r.Dst)] = VirtualMAC()
		}
	}
	return want
}

// applyNeighbours sets the permanent entries missing on link, removes all others, and returns the number of changes.
func applyNeighbours(h *netlink.Handle, link netlink.Link, missing map[netip.Addr]api.MAC) (changed int, err error) {
	index := link.Attrs().Index
	have, err := kernel.Dump(func() ([]netlink.Neigh, error) { return h.NeighList(index, netlink.FAMILY_ALL) })
	if err != nil {
		return 0, fmt.Errorf("listing neighbours: %w", err)
	}
	for _, n := range have {
		ip, _ := netip.AddrFromSlice(n.IP)
		ip = ip.Unmap()
		mac, wanted := missing[ip]
		switch {
		case n.State&netlink.NUD_PERMANENT == 0 || n.Flags&netlink.NTF_PROXY != 0:
		case wanted && n.HardwareAddr.String() == mac.String():
			delete(missing, ip)
		case !wanted:
			if err := h.NeighDel(&n); err != nil && !errors.Is(err, unix.ENOENT) {
				return changed, fmt.Errorf("removing neighbour %s: %w", ip, err)
			}
			changed++
		}
	}
	for ip, mac := range missing {
		n := netlink.Neigh{LinkIndex: index, IP: ip.AsSlice(), HardwareAddr: mac[:], State: netlink.NUD_PERMANENT}
		if err := h.NeighSet(&n); err != nil {
			return changed, fmt.Errorf("setting neighbour %s: %w", ip, err)
		}
		changed++
	}
	return changed, nil
}
