package link

import (
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/fairlead-cni/fairlead/datapath/internal/kernel"
)

// VLANDevices returns the VLAN sub-interfaces (ip-link(8), type vlan, protocol
// 802.1Q) of the interfaces called parents, by VLAN ID: the node itself is in these VLANs and receives their frames.
func VLANDevices(parents ...string) (map[uint16]string, error) {
	links, err := kernel.Dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("listing interfaces: %w", err)
	}
	return vlanDevices(links, parents), nil
}

func vlanDevices(links []netlink.Link, parents []string) map[uint16]string {
	index := map[int]bool{}
	for _, l := range links {
		if slices.Contains(parents, l.Attrs().Name) {
			index[l.Attrs().Index] = true
		}
	}
	devices := map[uint16]string{}
	for _, l := range links {
		v, ok := l.(*netlink.Vlan)
		if ok && index[v.ParentIndex] && v.VlanProtocol != netlink.VLAN_PROTOCOL_8021AD {
			devices[uint16(v.VlanId)] = v.Name
		}
	}
	return devices
}
