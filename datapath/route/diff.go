package route

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/internal/netaddr"
)

type verb int

// In the order of execution.
const (
	add verb = iota
	replace
	remove
)

// op is one change to the kernel's table.
type op struct {
	verb  verb
	route netlink.Route
}

func (o op) dst() netip.Prefix { return netaddr.Prefix(o.route.Dst) }

// diff returns what turns have into want, in a fixed order: add, replace, remove. Destinations to which others have a
// route are left alone.
func diff(want, have table, others taken) []op {
	var ops []op
	for k, w := range want {
		h, there := have[k]
		_, foreign := others[k.dst]
		switch {
		case there && same(w, h):
		case foreign:
		case there:
			ops = append(ops, op{replace, w})
		default:
			ops = append(ops, op{add, w})
		}
	}
	for k, h := range have {
		if _, ok := want[k]; !ok {
			ops = append(ops, op{remove, h})
		}
	}
	slices.SortFunc(ops, func(a, b op) int {
		pa, pb := a.dst(), b.dst()
		return cmp.Or(cmp.Compare(a.verb, b.verb), pa.Addr().Compare(pb.Addr()), cmp.Compare(pa.Bits(), pb.Bits()),
			cmp.Compare(a.route.Priority, b.route.Priority))
	})
	return ops
}

// same compares the attributes that Fairlead sets; the kernel adds others, such as "linkdown". A route with several
// next hops has no Gw.
func same(a, b netlink.Route) bool {
	return a.LinkIndex == b.LinkIndex && a.Gw.Equal(b.Gw) && a.Src.Equal(b.Src) && a.MTU == b.MTU &&
		a.Flags&int(netlink.FLAG_ONLINK) == b.Flags&int(netlink.FLAG_ONLINK)
}

// outcome counts o in c, or returns what failed, given the kernel's error.
func (o op) outcome(err error, c *Changes) error {
	if o.verb == remove && errors.Is(err, unix.ESRCH) {
		err = nil // already removed
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", [...]string{"adding", "replacing", "removing"}[o.verb], o.dst(), err)
	}
	*[...]*int{&c.Added, &c.Replaced, &c.Removed}[o.verb]++
	return nil
}

// describe formats a foreign route for an error message.
func describe(h *netlink.Handle, r netlink.Route) string {
	dev := fmt.Sprintf("interface %d", r.LinkIndex)
	if l, err := h.LinkByIndex(r.LinkIndex); err == nil {
		dev = "dev " + l.Attrs().Name
	}
	if len(r.Gw) > 0 {
		dev = fmt.Sprintf("via %s %s", r.Gw, dev)
	}
	return fmt.Sprintf("%s proto %s metric %d", dev, r.Protocol, r.Priority)
}
