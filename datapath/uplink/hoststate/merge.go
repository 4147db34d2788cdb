package hoststate

import (
	"bytes"
	"net"
	"slices"

	"golang.org/x/sys/unix"
)

// On returns the state l, read on an interface that has stood in for p, as it would be on p: without the flags that
// keep the kernel from adding prefix routes for addresses, if such a route exists.
func (l Link) On(p Iface) Link {
	out := Link{Iface: p, ReadAt: l.ReadAt}
	for _, o := range l.Addresses {
		a, _ := AddressOn(o, l.Iface, p, 0, 0)
		if slices.ContainsFunc(l.Routes, o.isPrefix) || o.linkLocal() {
			a = a.withoutFlags(unix.IFA_F_NOPREFIXROUTE)
		}
		if o.linkLocal() {
			a = a.withoutFlags(unix.IFA_F_NODAD)
		}
		out.Addresses = append(out.Addresses, a)
	}
	for _, o := range l.Routes {
		r, _ := RouteOn(o, l.Iface, p, 0)
		out.Routes = append(out.Routes, r)
	}
	for _, o := range l.Rules {
		out.Rules = append(out.Rules, RuleOn(o, l.Iface, p))
	}
	for _, o := range l.Neighbours {
		out.Neighbours = append(out.Neighbours, neighbourOn(o, p, o.state()))
	}
	return out
}

// Renamed returns l as after its interface was renamed.
func (l Link) Renamed(name string) Link {
	from := l.Iface
	l.Name, l.Addresses, l.Rules = name, slices.Clone(l.Addresses), slices.Clone(l.Rules)
	for i, o := range l.Addresses {
		l.Addresses[i], _ = AddressOn(o, from, l.Iface, 0, 0) // labels
	}
	for i, o := range l.Rules {
		l.Rules[i] = RuleOn(o, from, l.Iface)
	}
	return l
}

func (o Object) linkLocal() bool {
	return net.IP(o.attr(unix.IFA_ADDRESS)).IsLinkLocalUnicast() && o.IsIPv6()
}

// isPrefix reports whether the route r is the one that the kernel adds for the address o.
func (o Object) isPrefix(r Object) bool {
	ip, bits := net.IP(o.attr(unix.IFA_ADDRESS)), int(o.header()[1])
	return r.Protocol() == unix.RTPROT_KERNEL && r.family() == o.family() && int(r.header()[1]) == bits &&
		bytes.Equal(r.attr(unix.RTA_DST), ip.Mask(net.CIDRMask(bits, 8*len(ip))))
}

func (o Object) withoutFlags(without uint32) Object {
	flags := o.number(unix.IFA_FLAGS) &^ without
	return o.edit(func(head []byte) { head[2] = byte(flags) }, func(a attr) []byte {
		if a.typ == unix.IFA_FLAGS {
			return u32(flags)
		}
		return a.value
	})
}

// Add adds what more has of the same interface and l lacks.
func (l *Link) Add(more Link) {
	for _, o := range more.Addresses {
		// Lifetimes count from when l was read.
		if a, ok := AddressOn(o, more.Iface, more.Iface, 0, l.ReadAt-more.ReadAt); ok && !Has(l.Addresses, o) {
			l.Addresses = append(l.Addresses, a)
		}
	}
	for _, o := range more.Routes {
		if !HasRoute(l.Routes, o) {
			l.Routes = append(l.Routes, o)
		}
	}
	for _, o := range more.Rules {
		if !HasRule(l.Rules, o) {
			l.Rules = append(l.Rules, o)
		}
	}
	for _, o := range more.Neighbours {
		if !slices.ContainsFunc(l.Neighbours, o.sameNeighbour) {
			l.Neighbours = append(l.Neighbours, o)
		}
	}
}
