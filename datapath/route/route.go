package route

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/internal/kernel"
	"github.com/fairlead-cni/fairlead/internal/netaddr"
)

// Protocol is the routing protocol number of Fairlead's routes (rtnetlink(7), rtm_protocol). 0x66 is 102, "f"; it is
// not assigned in linux/rtnetlink.h or iproute2's rt_protos.d.
const Protocol netlink.RouteProtocol = 0x66

// VirtualMAC is the MAC of the virtual next hop: the destination of frames that the host sends to other nodes' pods.
func VirtualMAC() api.MAC { return api.MAC{0x02, 'f', 'l', 0, 0, 0xfe} }

// NextHop4 is the virtual next hop of IPv4 routes. It is link-local (RFC 3927)
// and on no interface.
func NextHop4() netip.Addr { return netip.AddrFrom4([4]byte{169, 254, 0, 253}) }

// NextHop6 is the virtual next hop of IPv6 routes: the link-local address of
// VirtualMAC.
func NextHop6() netip.Addr { return VirtualMAC().LinkLocal() }

// Route leads to the pods of another node, or to one bridged pod of this node.
type Route struct {
	Dst netip.Prefix
	// Via is the other node's address, in a subnet of the transport interface.
	// The zero Addr is the virtual next hop behind the gateway.
	Via netip.Addr
	// MAC is the MAC of the bridged pod with address Dst, which is on link behind the gateway. Zero for other nodes.
	MAC api.MAC
	// Src is the source of the host's own packets to Dst, one of the node's addresses. The zero Addr leaves it to the
	// kernel.
	Src netip.Addr
	// MTU is the path MTU to Dst, in bytes. 0 is the interface's.
	MTU int
}

// Tunnelled reports whether the route leads to the virtual next hop, behind which is the tunnel.
func (r Route) Tunnelled() bool { return !r.Via.IsValid() && r.MAC == (api.MAC{}) }

// Desired are all wanted routes. Link is the gateway's name, Transport that of the interface for routes with Via. Own
// are the node's own podCIDRs, to which the kernel has routes through the gateway.
type Desired struct {
	Link, Transport string
	Routes          []Route
	Own             []netip.Prefix
}

// Changes counts what Apply did.
type Changes struct {
	Added, Replaced, Removed int
	// Neighbours counts entries set or removed.
	Neighbours int
}

// Apply reconciles the routes with d, adding before it removes; one route may cover those of many peers. A destination
// to which another program has a route is left out and named in the error, the others are applied nevertheless; Changes
// says what was done in either case. It stops when ctx ends.
func Apply(ctx context.Context, d Desired) (Changes, error) {
	c, err := apply(ctx, d)
	if err != nil {
		err = fmt.Errorf("routes to pods: %w", err)
	}
	return c, err
}

func apply(ctx context.Context, d Desired) (Changes, error) {
	var c Changes
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return c, fmt.Errorf("opening a netlink socket: %w", err)
	}
	defer h.Close()
	link, err := h.LinkByName(d.Link)
	if err != nil {
		return c, fmt.Errorf("looking up gateway %s: %w", d.Link, err)
	}
	transport, err := transportIndex(h, d)
	if err != nil {
		return c, err
	}
	if err := d.check(); err != nil {
		return c, err
	}
	// Neighbours first: a route whose next hop has no neighbour entry loses packets.
	if c.Neighbours, err = applyNeighbours(h, link, neighboursOf(d)); err != nil {
		return c, err
	}
	all := d.merge()
	have, foreign, err := observe(h, all, d.Own)
	if err != nil {
		return c, err
	}
	want := wanted(unmerged(all, foreign), link.Attrs().Index, transport)
	failed, err := change(ctx, diff(want, have, foreign), &c)
	if err != nil {
		return c, err
	}
	for dst, r := range foreign {
		if !slices.ContainsFunc(d.Routes, func(w Route) bool { return w.Dst.Masked() == dst }) {
			continue // no conflict
		}
		failed.add(dst, fmt.Errorf("%s already has a route that Fairlead did not create (%s); remove it, or change the pods' addresses", dst, describe(h, r)))
	}
	return c, failed.err()
}

// change applies changes, and counts them in c. A route to be removed stays, or is restored at once, if its replacement
// could not be added.
func change(ctx context.Context, ops []op, c *Changes) (failed failures, err error) {
	if len(ops) == 0 {
		return failed, nil
	}
	b, err := newBatch()
	if err != nil {
		return failed, err
	}
	defer b.Close()
	inVain := func(o op) bool { return o.verb == remove && failed.overlap(o.dst()) }
	for some := range slices.Chunk(ops, atOnce) {
		if ctx.Err() != nil {
			return failed, fmt.Errorf("interrupted: %w", ctx.Err())
		}
		some = slices.DeleteFunc(some, inVain)
		var back []op
		for i, err := range b.do(some) {
			if err == nil && inVain(some[i]) {
				back = append(back, op{add, some[i].route})
				continue
			}
			failed.add(some[i].dst(), some[i].outcome(err, c))
		}
		for i, err := range b.do(back) {
			failed.add(back[i].dst(), back[i].outcome(err, &Changes{}))
		}
	}
	return failed, nil
}

// transportIndex returns 0 if no route needs the interface.
func transportIndex(h *netlink.Handle, d Desired) (int, error) {
	if !slices.ContainsFunc(d.Routes, func(r Route) bool { return r.Via.IsValid() }) {
		return 0, nil
	}
	link, err := h.LinkByName(d.Transport)
	if err != nil {
		return 0, fmt.Errorf("looking up the transport interface %s: %w", d.Transport, err)
	}
	return link.Attrs().Index, nil
}

// key is what distinguishes routes of one table for the kernel.
type key struct {
	dst    netip.Prefix
	metric int
}

// table is a set of routes by the kernel's key.
type table map[key]netlink.Route

// taken are routes of others to destinations that we want.
type taken map[netip.Prefix]netlink.Route

// defaultMetric6 is the kernel's metric for IPv6 routes that are added without
// one (IP6_RT_PRIO_USER in linux/ipv6_route.h).
const defaultMetric6 = 1024

// check says what is wrong with a route.
func (r Route) check() error {
	if !r.Dst.IsValid() || r.Dst.Addr().Is4In6() {
		return fmt.Errorf("destination %s is not a prefix", r.Dst)
	}
	for _, a := range []netip.Addr{r.Src, r.Via} {
		if a.IsValid() && a.Is4() != r.Dst.Addr().Is4() {
			return fmt.Errorf("%s and destination %s are of different families", a, r.Dst)
		}
	}
	if r.MAC != (api.MAC{}) && (!r.Dst.IsSingleIP() || r.Via.IsValid()) {
		return fmt.Errorf("destination %s with MAC %s is not a single pod address of this node", r.Dst, r.MAC)
	}
	return nil
}

func (d Desired) check() error {
	for _, r := range d.Routes {
		if err := r.check(); err != nil {
			return err
		}
	}
	return nil
}

// wanted converts routes to netlink's form, given their interface indexes.
func wanted(routes []Route, gateway, transport int) table {
	want := table{}
	for _, r := range routes {
		k, nr := key{dst: r.Dst.Masked()}, netlink.Route{
			LinkIndex: transport, Dst: netaddr.IPNet(r.Dst.Masked()), Gw: r.Via.AsSlice(),
			Src: r.Src.AsSlice(), Protocol: Protocol, Table: unix.RT_TABLE_MAIN, MTU: r.MTU,
		}
		if r.Dst.Addr().Is6() {
			k.metric, nr.Priority = defaultMetric6, defaultMetric6
		}
		switch {
		case r.MAC != (api.MAC{}):
			nr.LinkIndex, nr.Scope = gateway, netlink.SCOPE_LINK
		case !r.Via.IsValid():
			nr.LinkIndex, nr.Gw = gateway, virtualNextHop(r.Dst).AsSlice()
			if r.Dst.Addr().Is4() { // a link-local IPv6 next hop is on link anyway
				nr.Flags = int(netlink.FLAG_ONLINK)
			}
		}
		want[k] = nr
	}
	return want
}

// virtualNextHop returns the virtual next hop of dst's family.
func virtualNextHop(dst netip.Prefix) netip.Addr {
	if dst.Addr().Is4() {
		return NextHop4()
	}
	return NextHop6()
}

// observe reads Fairlead's routes, and the routes of others to wanted destinations or parts of them, except to own.
func observe(h *netlink.Handle, want []merged, own []netip.Prefix) (have table, foreign taken, err error) {
	wantedDst := map[netip.Prefix]bool{}
	for _, m := range want {
		wantedDst[m.Dst.Masked()] = true
	}
	isOwn := func(dst netip.Prefix) bool {
		return slices.ContainsFunc(own, func(p netip.Prefix) bool { return p.Masked() == dst })
	}
	_, err = kernel.Dump(func() (struct{}, error) {
		have, foreign = table{}, taken{}
		return struct{}{}, h.RouteListFilteredIter(netlink.FAMILY_ALL, &netlink.Route{}, 0, func(r netlink.Route) bool {
			dst := netaddr.Prefix(r.Dst)
			if r.Protocol == Protocol {
				have[key{dst, r.Priority}] = r
			} else if covered(dst, wantedDst) && !isOwn(dst) {
				foreign[dst] = r
			}
			return true
		})
	})
	if err != nil {
		return nil, nil, fmt.Errorf("listing routes: %w", err)
	}
	return have, foreign, nil
}

// Missing reports whether one of dsts is not covered by Fairlead's routes.
func Missing(dsts []netip.Prefix) (bool, error) {
	if len(dsts) == 0 {
		return false, nil
	}
	have, err := kernel.Dump(ours)
	if err != nil {
		return false, fmt.Errorf("listing routes: %w", err)
	}
	led := map[netip.Prefix]bool{}
	for _, r := range have {
		led[netaddr.Prefix(r.Dst)] = true
	}
	return slices.ContainsFunc(dsts, func(p netip.Prefix) bool { return !covered(p.Masked(), led) }), nil
}

// ours returns Fairlead's routes, as the kernel has them.
func ours() ([]netlink.Route, error) {
	return netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: Protocol}, netlink.RT_FILTER_PROTOCOL)
}

// covered reports whether a prefix contains dst.
func covered(dst netip.Prefix, prefixes map[netip.Prefix]bool) bool {
	for bits := dst.Bits(); bits >= 0; bits-- {
		if p, err := dst.Addr().Prefix(bits); err == nil && prefixes[p] {
			return true
		}
	}
	return false
}

// within reports whether one of the routes leads to p or to a part of it.
func (t taken) within(p netip.Prefix) bool {
	for dst := range t {
		if p.Overlaps(dst) && dst.Bits() >= p.Bits() {
			return true
		}
	}
	return false
}

// failures joins errors, but shows only the first few of a thousand alike.
type failures struct {
	list []error
	dsts []netip.Prefix
}

func (f *failures) add(dst netip.Prefix, err error) {
	if err != nil {
		f.list, f.dsts = append(f.list, err), append(f.dsts, dst)
	}
}

// overlap reports whether a failed destination overlaps dst.
func (f *failures) overlap(dst netip.Prefix) bool { return slices.ContainsFunc(f.dsts, dst.Overlaps) }

func (f *failures) err() error {
	const shown = 5
	n := len(f.list)
	if n == 0 {
		return nil
	}
	var text []string
	for _, e := range f.list[:min(n, shown)] {
		text = append(text, e.Error())
	}
	if n > shown {
		text = append(text, fmt.Sprintf("and %d more", n-shown))
	}
	return errors.New(strings.Join(text, "; "))
}
