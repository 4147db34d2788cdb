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

// podUp brings the pod's end up; the calling thread is in the pod's namespace. It
// leaves a netlink socket of that namespace, which any thread can use. It does nothing
// that can be done later: ovs-vswitchd looks at all ports when the veth appears, and what
// has changed by the end of that, carrier and port, it takes at once.
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

// setUp sets an interface up by its name, in one request: each waits for the kernel's lock of all links, which
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

// addressPod gives the pod's end its addresses and routes.
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

// podSysctls prepares IPv6 before the link comes up, when the kernel makes the
// link-local address. The runtime may have switched IPv6 off in the namespace.
func (l PodLink) podSysctls() error {
	if !kernel.HasIPv6() {
		if l.has6() {
			return errors.New("the pod has an IPv6 address, but IPv6 is disabled in the kernel")
		}
		return nil
	}
	set := [][2]string{{"accept_ra", "0"}} // routes come from here, not from whoever sends an RA
	if l.has6() {
		set = append(set, [2]string{"disable_ipv6", "0"},
			[2]string{"addr_gen_mode", "0"}, // EUI-64: api.MAC.LinkLocal, which the flows know
			[2]string{"accept_dad", "0"})    // the node hands out addresses once; waiting 1 s proves nothing
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

// routes are the default routes, each behind a route to its gateway where no
// address's mask covers that.
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

// address is a in netlink's form. IPv6 skips duplicate address detection: a
// tentative address is refused as a source for about a second.
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
