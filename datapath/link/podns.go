package link

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/datapath/internal/kernel"
	"github.com/fairlead-cni/fairlead/internal/netaddr"
)

// podUp sets the pod's end up; the calling thread is in the pod's namespace. It leaves a netlink socket of that
// namespace, which any thread can use. It does nothing that can be done later: ovs-vswitchd reads all ports when the
// veth appears, and takes all that has changed by the end of that, carrier and port, at once.
func (v *Veth) podUp() (err error) {
	if v.netlink, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return fmt.Errorf("opening a netlink socket: %w", err)
	}
	if err := v.podSysctls(); err != nil {
		return err
	}
	if err := setUp(v.IfName); err != nil {
		return fmt.Errorf("setting %s up: %w", v.IfName, err)
	}
	return nil
}

// setUp sets an interface up by name, in one request: each waits for the kernel's lock on all links (RTNL), which
// ovs-vswitchd takes for every port meanwhile.
func setUp(ifName string) error {
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	up := nl.NewIfInfomsg(unix.AF_UNSPEC)
	up.Flags, up.Change = unix.IFF_UP, unix.IFF_UP
	req.AddData(up)
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(ifName)))
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

func (v *Veth) addressPod() error {
	podEnd, err := v.netlink.LinkByName(v.IfName)
	if err != nil {
		return fmt.Errorf("looking up %s: %w", v.IfName, err)
	}
	for _, a := range v.Addrs {
		if err := v.netlink.AddrAdd(podEnd, address(a)); err != nil {
			return fmt.Errorf("adding address %s: %w", a, err)
		}
	}
	for _, r := range v.routes(podEnd.Attrs().Index) {
		switch err := v.netlink.RouteAdd(&r); {
		case errors.Is(err, unix.EEXIST):
			return fmt.Errorf("the pod has a route to %s already, through another of its interfaces: Fairlead makes one "+
				"interface per pod. For more, use Multus, with Fairlead as IPAM plugin (docs/secondary-networks.md)",
				netaddr.Prefix(r.Dst))
		case err != nil:
			return fmt.Errorf("adding route %s: %w", describe(r), err)
		}
	}
	return nil
}

// podSysctls prepares IPv6 before the link comes up, when the kernel creates the link-local address. The runtime may
// have disabled IPv6 in the namespace.
func (l PodLink) podSysctls() error {
	if !kernel.HasIPv6On(l.IfName) {
		if l.has6() {
			return errors.New("the pod has an IPv6 address, but IPv6 is disabled in the kernel")
		}
		return nil
	}
	set := [][2]string{{"accept_ra", "0"}} // routes come from here, not from an RA
	if l.has6() {
		set = append(set, [2]string{"disable_ipv6", "0"},
			[2]string{"addr_gen_mode", "0"}, // EUI-64: api.MAC.LinkLocal, which the flows accept
			[2]string{"accept_dad", "0"})    // the node allocates each address once; waiting 1 s proves nothing
	}
	for _, kv := range set {
		if err := kernel.WriteSysctl(kv[1], "ipv6", "conf", l.IfName, kv[0]); err != nil {
			return err
		}
	}
	return nil
}

func (l PodLink) has6() bool {
	return slices.ContainsFunc(l.Addrs, func(a netip.Prefix) bool { return a.Addr().Is6() })
}

// routes returns the default routes, each after a route to its gateway if no address's mask covers that.
func (l PodLink) routes(index int) []netlink.Route {
	var routes []netlink.Route
	for _, g := range l.Gateways {
		if !l.onLink(g) {
			routes = append(routes, netlink.Route{LinkIndex: index, Scope: netlink.SCOPE_LINK,
				Dst: netaddr.IPNet(netip.PrefixFrom(g, g.BitLen()))})
		}
		any4or6 := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if g.Is6() {
			any4or6 = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		routes = append(routes, netlink.Route{LinkIndex: index, Dst: netaddr.IPNet(any4or6), Gw: g.AsSlice()})
	}
	return routes
}

func (l PodLink) onLink(g netip.Addr) bool {
	return g.IsLinkLocalUnicast() && g.Is6() ||
		slices.ContainsFunc(l.Addrs, func(a netip.Prefix) bool { return a.Masked().Contains(g) })
}

// address returns a in netlink's form. IPv6 skips duplicate address detection: a tentative address cannot be used as a
// source for about a second.
func address(a netip.Prefix) *netlink.Addr {
	addr := &netlink.Addr{IPNet: netaddr.IPNet(a)}
	if a.Addr().Is6() {
		addr.Flags = unix.IFA_F_NODAD
	}
	return addr
}

// describe is r as ip-route(8) writes it.
func describe(r netlink.Route) string {
	if len(r.Gw) == 0 {
		return netaddr.Prefix(r.Dst).String()
	}
	return netaddr.Prefix(r.Dst).String() + " via " + r.Gw.String()
}
