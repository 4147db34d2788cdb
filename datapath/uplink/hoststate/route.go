package hoststate

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// RouteOn returns the route, read on from, as a request that makes it lead through to. The time elapsed is subtracted
// from its lifetime; ok is false if nothing is left.
//
// A route from a router advertisement gets a metric that is one higher. The kernel recreates the route at the next
// advertisement, and would discard that whole advertisement, prefixes included, if the route existed and were not its
// own.
func RouteOn(o Object, from, to Iface, elapsed time.Duration) (out Object, ok bool) {
	var more []attr
	ok = true
	if left := expires(o.attr(unix.RTA_CACHEINFO)); left > 0 {
		left = less(left, elapsed)
		ok = left > 0
		more = append(more, attr{unix.RTA_EXPIRES, u32(left)})
	}
	index := func(b []byte) {
		if int(binary.NativeEndian.Uint32(b)) == from.Index {
			binary.NativeEndian.PutUint32(b, uint32(to.Index))
		}
	}
	return o.edit(plainRoute, func(a attr) []byte {
		v := bytes.Clone(a.value)
		switch a.typ {
		case unix.RTA_CACHEINFO, unix.RTA_EXPIRES:
			return nil
		case unix.RTA_OIF:
			index(v)
		case unix.RTA_PRIORITY:
			if o.fromRA() && from.Index != to.Index {
				return u32(binary.NativeEndian.Uint32(v) + 1)
			}
		case unix.RTA_MULTIPATH:
			eachHop(v, func(hop []byte) {
				hop[2] &= unix.RTNH_F_ONLINK
				index(hop[4:])
			})
		}
		return v
	}, more...), ok
}

// plainRoute clears the flags in a route's header that only report its state.
func plainRoute(head []byte) {
	binary.NativeEndian.PutUint32(head[8:], binary.NativeEndian.Uint32(head[8:])&unix.RTNH_F_ONLINK)
}

func (o Object) fromRA() bool { return o.header()[5] == unix.RTPROT_RA }

// Protocol returns the origin of a route (rtnetlink(7), rtm_protocol).
func (o Object) Protocol() byte { return o.header()[5] }

// IsFairleads reports a route of package route, which leads to the pods of another node. It is not the host's state:
// package route adds it where it belongs, and removes it.
func (o Object) IsFairleads() bool { return o.Protocol() == 0x66 }

// ByNexthopObject reports a route that uses a nexthop object (ip-nexthop(8)).
func (o Object) ByNexthopObject() bool { return o.attr(30) != nil } // RTA_NH_ID

// Gateway returns the address of the route's next hop, nil if it has none or several.
func (o Object) Gateway() []byte { return o.attr(unix.RTA_GATEWAY) }

// SameRoute reports that a and b are equal except for lifetimes. Both must be requests, or both as reported by the
// kernel.
func SameRoute(a, b Object) bool {
	none := func(o Object) string {
		o, _ = RouteOn(o, Iface{}, Iface{}, 0)
		return o.Describe(nil)
	}
	return none(a) == none(b)
}

// HasRoute reports whether want is among have.
func HasRoute(have []Object, want Object) bool {
	return slices.ContainsFunc(have, func(o Object) bool { return SameRoute(o, want) })
}

// sameKey reports that a and b are alternatives to the kernel: the same destination in the same table with the same
// type of service and metric.
func sameKey(a, b Object) bool {
	ha, hb := a.header(), b.header()
	return ha[0] == hb[0] && ha[1] == hb[1] && ha[2] == hb[2] && ha[3] == hb[3] &&
		a.number(unix.RTA_TABLE) == b.number(unix.RTA_TABLE) && a.number(unix.RTA_PRIORITY) == b.number(unix.RTA_PRIORITY) &&
		bytes.Equal(a.attr(unix.RTA_DST), b.attr(unix.RTA_DST)) && bytes.Equal(a.attr(unix.RTA_SRC), b.attr(unix.RTA_SRC))
}

// RouteMove replaces Old, as reported by the kernel, with New, a request. Either may or may not exist.
type RouteMove struct{ Old, New Object }

// MoveRoutes does all moves, link routes before those through a gateway, which need them. A route that cannot be added
// is retried after the others, and named in the error if that fails too.
func MoveRoutes(moves []RouteMove) error {
	moves = slices.Clone(moves)
	slices.SortStableFunc(moves, func(a, b RouteMove) int { return a.New.distance() - b.New.distance() })
	for {
		have, err := List(Route)
		if err != nil {
			return err
		}
		var failed []RouteMove
		var errs []error
		for _, m := range moves {
			if err := m.do(have); err != nil {
				failed = append(failed, m)
				errs = append(errs, fmt.Errorf("moving %s: %w", m.New.Text, err))
			}
		}
		if len(failed) == 0 || len(failed) == len(moves) {
			return errors.Join(errs...)
		}
		moves = failed
	}
}

// distance returns 1 for a route that needs others to reach its next hop.
func (o Object) distance() int {
	if o.Gateway() != nil || o.attr(unix.RTA_VIA) != nil || o.attr(unix.RTA_MULTIPATH) != nil {
		return 1
	}
	return 0
}

func (m RouteMove) do(have []Object) error {
	// With the same key, in the kernel's order: the first is used.
	rivals := slices.DeleteFunc(slices.Clone(have), func(o Object) bool { return !sameKey(o, m.New) })
	oldAt := slices.IndexFunc(rivals, func(o Object) bool { return SameRoute(o, m.Old) })
	newAt := slices.IndexFunc(rivals, func(o Object) bool { return SameRoute(o, m.New) })
	replace := oldAt >= 0 && m.New.replaces(oldAt)
	if newAt >= 0 && replace && len(rivals) > 2 {
		// The kernel added it with the address, after others that are not used.
		if err := rivals[newAt].remove(); err != nil {
			return err
		}
		newAt = -1
	}
	if newAt < 0 {
		replaced, err := m.put(replace)
		if replaced || err != nil {
			return err // removing the old one too would remove the next hops that both have
		}
	}
	if i := slices.IndexFunc(have, func(o Object) bool { return SameRoute(o, m.Old) }); i >= 0 {
		return have[i].remove()
	}
	return nil
}

// put adds the new route, and reports whether it has replaced another. An existing one is not an error.
func (m RouteMove) put(replace bool) (replaced bool, err error) {
	flags := 0
	if replace {
		flags = unix.NLM_F_REPLACE
	} else if !m.New.IsIPv6() {
		flags = unix.NLM_F_APPEND
	}
	err = m.New.add(flags)
	if errors.Is(err, unix.EEXIST) && m.New.IsIPv6() && m.New.attr(unix.RTA_MULTIPATH) != nil {
		// Some of its next hops exist: the others were removed with their interface.
		err = m.New.add(unix.NLM_F_REPLACE)
	}
	if errors.Is(err, unix.EEXIST) {
		return false, nil
	}
	return replace && err == nil, err
}

// replaces reports whether NLM_F_REPLACE replaces the route at that position among its alternatives. For IPv4 the
// kernel replaces the first. For IPv6 it replaces the one group that has gateways; of those without it replaces the
// first, on any interface: each has the same fe80::/64.
func (o Object) replaces(at int) bool {
	if o.IsIPv6() {
		return o.distance() == 1 && !o.fromRA()
	}
	return at == 0
}
