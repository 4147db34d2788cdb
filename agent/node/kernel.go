package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/agent/signal"
	"github.com/fairlead-cni/fairlead/datapath/route"
	"github.com/fairlead-cni/fairlead/internal/netaddr"
)

// kernel watches external changes of the host's routes and addresses. A restarted network manager deletes routes that
// it does not know, and DHCP gives the node another address: the next resync is too late for either.
type kernel struct {
	// changed is notified of changes that need a round that verifies everything.
	changed signal.Signal
	// routes are the desired routes of the last round.
	routes atomic.Pointer[[]route.Route]
	log    logr.Logger
}

const (
	// gather is how long changes are collected before they are examined: external ones come in batches, and the loop's own
	// are as desired once its round has ended.
	gather = 200 * time.Millisecond
	// resubscribe is the wait after the kernel ended a subscription, as it does when too much is unread.
	resubscribe = time.Second
)

// FollowKernel wakes the loop when another program deletes its routes or changes the node's addresses, until ctx ends.
func (n *Node) FollowKernel(ctx context.Context) {
	k := &n.kernel
	for again := false; ctx.Err() == nil; again = true {
		if err := k.follow(ctx, again); err != nil && ctx.Err() == nil {
			k.log.Error(err, "watching routes and addresses; subscribing again")
		}
		select {
		case <-ctx.Done():
		case <-time.After(resubscribe):
		}
	}
}

// addrOf is an address of an interface.
type addrOf struct {
	link int
	addr netip.Addr
}

// follow watches until ctx or a subscription ends. again: it is not the first call.
func (k *kernel) follow(ctx context.Context, again bool) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	routes, addrs := make(chan netlink.RouteUpdate, 1000), make(chan netlink.AddrUpdate, 1000)
	err := errors.Join(netlink.RouteSubscribe(routes, ctx.Done()), netlink.AddrSubscribe(addrs, ctx.Done()))
	if again { // something may have changed meanwhile; from now on, changes are received if there was no error
		k.changed.Notify()
	}
	if err != nil {
		return fmt.Errorf("subscribing to routes and addresses: %w", err)
	}
	known, err := addresses()
	if err != nil {
		return err
	}
	var deleted []netip.Prefix
	others := false // addresses
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case r, ok := <-routes:
			if !ok {
				return errEnded
			}
			if ours(r) {
				deleted = append(deleted, netaddr.Prefix(r.Dst))
				timer.Reset(gather)
			}
		case a, ok := <-addrs:
			if !ok {
				return errEnded
			}
			if known.update(a) {
				others = true
				timer.Reset(gather)
			}
		case <-timer.C:
			if others || k.missesRoute(deleted) {
				k.changed.Notify()
			}
			deleted, others = nil, false
		}
	}
}

var errEnded = errors.New("the kernel ended the subscription: more changed at once than was read")

// ours reports whether a route with Fairlead's mark was deleted.
func ours(r netlink.RouteUpdate) bool {
	return r.Type == unix.RTM_DELROUTE && r.Protocol == route.Protocol && r.Dst != nil
}

// missesRoute reports whether a desired route that overlaps a deleted one is missing. The loop deletes some itself: one
// that leads to several peers replaces those to some of them, and vice versa.
func (k *kernel) missesRoute(deleted []netip.Prefix) bool {
	routes := k.routes.Load()
	if routes == nil {
		return false
	}
	var doubtful []netip.Prefix
	for _, r := range *routes {
		if slices.ContainsFunc(deleted, r.Dst.Overlaps) {
			doubtful = append(doubtful, r.Dst)
		}
	}
	missing, err := route.Missing(doubtful)
	if err != nil {
		k.log.Error(err, "checking for missing routes; comparing everything")
	}
	return missing || err != nil
}

// addrSet are addresses of interfaces except link-local ones, which every pod's interface has.
type addrSet map[addrOf]bool

func addresses() (addrSet, error) {
	all, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("listing addresses: %w", err)
	}
	known := addrSet{}
	for _, a := range all {
		known.update(netlink.AddrUpdate{LinkAddress: *a.IPNet, LinkIndex: a.LinkIndex, NewAddr: true})
	}
	return known, nil
}

// update records a change, and reports whether it is one: the kernel also announces that an address's lifetime was
// renewed.
func (s addrSet) update(a netlink.AddrUpdate) bool {
	of := addrOf{a.LinkIndex, addrIn(a.LinkAddress)}
	if of.addr.IsLinkLocalUnicast() || s[of] == a.NewAddr {
		return false
	}
	if s[of] = a.NewAddr; !a.NewAddr {
		delete(s, of)
	}
	return true
}

func addrIn(n net.IPNet) netip.Addr {
	addr, _ := netip.AddrFromSlice(n.IP)
	return addr.Unmap()
}
