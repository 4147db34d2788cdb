package link

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/internal/kernel"
	"github.com/fairlead-cni/fairlead/internal/netaddr"
)

// GatewayLink is the device of the node's own port on the bridge, which ovs-vswitchd creates for the port in OVSDB.
// Name, MAC and MTU are the same as there. Addrs are all its addresses except the link-local ones, which follow from
// the MAC.
type GatewayLink struct {
	Name  string
	MAC   api.MAC
	MTU   int
	Addrs []netip.Prefix
	// SubnetMTU is the MTU of the routes to the subnets of Addrs, in bytes, where pods there have a smaller MTU than the
	// device. 0: the device's.
	SubnetMTU int
	// Sources are the source addresses, at most one per family, of the node's own packets to those subnets; in a family
	// without one, the gateway's. The kernel masquerades with the gateway's address in either case.
	Sources []netip.Addr
	// IPv4, IPv6: packets of that family are forwarded, even without an address here.
	IPv4, IPv6 bool
}

// EnsureGateway configures the device as g says and returns a description of what it changed, also when it fails
// halfway. A device that ovs-vswitchd recreated (after "ovs-appctl exit --cleanup", del-dp or a reboot) is down and
// unconfigured; this restores it. It does not wait: a missing device is an error.
//
// It refuses a device that is not an internal port of Open vSwitch, since it
// removes all addresses that it does not want.
func EnsureGateway(g GatewayLink) (changes []string, err error) {
	link, err := netlink.LinkByName(g.Name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, fmt.Errorf("gateway %s does not exist: ovs-vswitchd creates it for the port in OVSDB; is it running?", g.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("looking up gateway %s: %w", g.Name, err)
	}
	// The userspace datapath creates internal ports as "tuntap".
	if kind := link.Type(); kind != "openvswitch" && kind != "tuntap" {
		return nil, fmt.Errorf("gateway %s is an interface of type %q, not an internal port of Open vSwitch: choose an unused name for the gateway", g.Name, kind)
	}
	for _, step := range []func(GatewayLink, netlink.Link) ([]string, error){
		ensureMTU, ensureSysctls, ensureLink, ensureAddrs, ensureSubnetRoutes,
	} {
		did, err := step(g, link)
		changes = append(changes, did...)
		if err != nil {
			return changes, fmt.Errorf("gateway %s: %w", g.Name, err)
		}
	}
	return changes, nil
}

// ensureMTU runs first: below 1280 the kernel has no IPv6 parameters for the link.
func ensureMTU(g GatewayLink, link netlink.Link) (changes []string, err error) {
	was := link.Attrs().MTU
	if was == g.MTU {
		return nil, nil
	}
	if err := netlink.LinkSetMTU(link, g.MTU); err != nil {
		return nil, fmt.Errorf("setting MTU %d: %w", g.MTU, err)
	}
	return []string{fmt.Sprintf("MTU %d, was %d", g.MTU, was)}, nil
}

// ensureSysctls runs before ensureLink, since some parameters take effect when the link comes up.
func ensureSysctls(g GatewayLink, _ netlink.Link) (changes []string, err error) {
	set := [][3]string{
		// Loose: a reply may arrive on another interface than the request left by (a Service, or hybrid mode). The kernel
		// uses the maximum of "all" and the interface, so 2 here overrides 1 there.
		{"ipv4", "rp_filter", "2"},
		// Send ARP requests from the gateway's own address, the only one the flows accept.
		{"ipv4", "arp_announce", "2"},
		// Has no effect where conf/all/send_redirects is 1 (either suffices), but does no harm: traffic from pods that goes
		// back to the bridge is Service traffic, and the kernel drops outgoing redirects for connections with NAT
		// (nf_nat_icmp_reply_translation); or it is between a routed pod and one in a VLAN, and a sender that accepts such a
		// redirect finds no host at the next hop and continues as before. The flows drop IPv6 redirects.
		{"ipv4", "send_redirects", "0"},
		// Otherwise deleting a stale address deletes wanted ones of its subnet.
		{"ipv4", "promote_secondaries", "1"},
	}
	if g.IPv4 || g.has(netip.Addr.Is4) {
		set = append(set, [3]string{"ipv4", "forwarding", "1"})
	}
	if kernel.HasIPv6On(g.Name) {
		set = append(set, [3]string{"ipv6", "accept_ra", "0"})
		if g.has6() {
			set = append(set, [3]string{"ipv6", "disable_ipv6", "0"}, [3]string{"ipv6", "addr_gen_mode", "0"},
				[3]string{"ipv6", "accept_dad", "0"}, [3]string{"ipv6", "forwarding", "1"})
		}
	} else if g.has6() {
		return nil, errors.New("IPv6 is configured, but disabled in the kernel, or the MTU is below 1280")
	}
	for _, s := range set {
		changed, err := kernel.SetSysctl(s[2], s[0], "conf", g.Name, s[1])
		if err != nil {
			return changes, err
		}
		if changed {
			changes = append(changes, fmt.Sprintf("%s %s %s", s[0], s[1], s[2]))
		}
	}
	return changes, nil
}

// ensureLink sets the MAC and brings the device up.
func ensureLink(g GatewayLink, link netlink.Link) (changes []string, err error) {
	a := link.Attrs()
	if a.HardwareAddr.String() != g.MAC.String() {
		if err := netlink.LinkSetHardwareAddr(link, g.MAC[:]); err != nil {
			return changes, fmt.Errorf("setting MAC %s: %w", g.MAC, err)
		}
		changes = append(changes, fmt.Sprintf("MAC %s, was %s", g.MAC, a.HardwareAddr))
	}
	if a.RawFlags&unix.IFF_UP == 0 {
		if err := netlink.LinkSetUp(link); err != nil {
			return changes, fmt.Errorf("setting up: %w", err)
		}
		changes = append(changes, "up")
	}
	return changes, nil
}

// ensureAddrs adds what is missing and then removes what is not wanted. Only an address with the wrong mask is removed
// first, since IPv6 holds an address once.
func ensureAddrs(g GatewayLink, link netlink.Link) (changes []string, err error) {
	have, err := kernel.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("listing addresses: %w", err)
	}
	var first, last []netlink.Addr
	missing := g.wanted()
	for _, a := range have {
		p := netaddr.Prefix(a.IPNet)
		if i := slices.Index(missing, p); i >= 0 {
			missing = slices.Delete(missing, i, i+1)
		} else if slices.ContainsFunc(g.wanted(), func(w netip.Prefix) bool { return w.Addr() == p.Addr() }) {
			first = append(first, a)
		} else {
			last = append(last, a)
		}
	}
	for _, step := range []func() ([]string, error){
		func() ([]string, error) { return removeAddrs(link, first) },
		func() ([]string, error) { return addAddrs(link, missing) },
		func() ([]string, error) { return removeAddrs(link, last) },
	} {
		did, err := step()
		changes = append(changes, did...)
		if err != nil {
			return changes, err
		}
	}
	return changes, nil
}

func addAddrs(link netlink.Link, addrs []netip.Prefix) (changes []string, err error) {
	for _, p := range addrs {
		err := netlink.AddrAdd(link, address(p))
		if errors.Is(err, unix.EEXIST) { // the kernel has already added its own link-local address
			continue
		}
		if err != nil {
			return changes, fmt.Errorf("adding address %s: %w", p, err)
		}
		changes = append(changes, "added address "+p.String())
	}
	return changes, nil
}

func removeAddrs(link netlink.Link, addrs []netlink.Addr) (changes []string, err error) {
	for _, a := range addrs {
		if err := netlink.AddrDel(link, &a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) { // gone by itself
			return changes, fmt.Errorf("removing address %s: %w", a.IPNet, err)
		}
		changes = append(changes, "removed address "+a.IPNet.String())
	}
	return changes, nil
}

// wanted returns g's addresses and, for IPv6, the link-local one, without which the kernel can neither send nor answer
// neighbour solicitations.
func (g GatewayLink) wanted() []netip.Prefix {
	want := slices.Clone(g.Addrs)
	if g.has6() {
		want = append(want, netip.PrefixFrom(g.MAC.LinkLocal(), 64))
	}
	return want
}

func (g GatewayLink) has6() bool { return g.IPv6 || g.has(netip.Addr.Is6) }

func (g GatewayLink) has(family func(netip.Addr) bool) bool {
	return slices.ContainsFunc(g.Addrs, func(p netip.Prefix) bool { return family(p.Addr()) })
}
