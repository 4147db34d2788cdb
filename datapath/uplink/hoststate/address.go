package hoststate

import (
	"bytes"
	"encoding/binary"
	"net"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// ifaProto is IFA_PROTO (linux/if_addr.h), who made the address; protoRA is the kernel, from router advertisements.
const (
	ifaProto = 11
	protoRA  = 2
)

// Flags that a request may set; the kernel computes the others. For IPv4 it would store any flag that it gets.
const (
	flags4 = unix.IFA_F_NOPREFIXROUTE | unix.IFA_F_MCAUTOJOIN
	flags6 = flags4 | unix.IFA_F_NODAD | unix.IFA_F_HOMEADDRESS | unix.IFA_F_MANAGETEMPADDR
)

// AddressOn returns the address, read on from, as a request that adds it to to. more are flags to set besides its own
// (IFA_F_…); a label that is the interface's name becomes that of to. The time elapsed is subtracted from the
// lifetimes; ok is false if nothing is left.
func AddressOn(o Object, from, to Iface, more uint32, elapsed time.Duration) (out Object, ok bool) {
	flags := o.number(unix.IFA_FLAGS)
	if o.family() == unix.AF_INET6 {
		flags = flags&flags6 | more
	} else {
		flags = flags&flags4 | more&flags4
	}
	ok = true
	out = o.edit(func(head []byte) {
		head[2] = byte(flags)
		binary.NativeEndian.PutUint32(head[4:], uint32(to.Index))
	}, func(a attr) []byte {
		switch a.typ {
		case unix.IFA_FLAGS:
			return u32(flags)
		case unix.IFA_LABEL:
			if cString(a.value) == from.Name {
				return append([]byte(to.Name), 0)
			}
		case unix.IFA_CACHEINFO:
			valid := less(binary.NativeEndian.Uint32(a.value[4:]), elapsed)
			ok = valid > 0
			preferred := less(binary.NativeEndian.Uint32(a.value), elapsed)
			return slices.Concat(u32(preferred), u32(valid), make([]byte, 8))
		}
		return a.value
	})
	return out, ok
}

// less subtracts the time elapsed from a lifetime in seconds.
func less(lifetime uint32, elapsed time.Duration) uint32 {
	// The kernel rounds the remaining time up, so the elapsed time is rounded up as well.
	gone := uint32((max(elapsed, 0) + time.Second - 1) / time.Second)
	switch {
	case lifetime == forever:
		return forever
	case lifetime <= gone:
		return 0
	}
	return lifetime - gone
}

// Expires reports that the address expires unless it is renewed.
func (o Object) Expires() bool {
	switch o.Kind {
	case Address:
		c := o.attr(unix.IFA_CACHEINFO)
		return len(c) >= 8 && binary.NativeEndian.Uint32(c[4:]) != forever
	case Route:
		return expires(o.attr(unix.RTA_CACHEINFO)) > 0 || o.fromRA()
	}
	return false
}

// FromRA reports an address that the kernel created from a router advertisement, and renews with the next.
func (o Object) FromRA() bool {
	p := o.attr(ifaProto)
	return len(p) == 1 && p[0] == protoRA || o.number(unix.IFA_FLAGS)&unix.IFA_F_MANAGETEMPADDR != 0
}

// SameAddress reports that a and b are the same address with the same mask and peer, wherever they are.
func SameAddress(a, b Object) bool {
	return a.family() == b.family() && a.header()[1] == b.header()[1] &&
		bytes.Equal(a.attr(unix.IFA_LOCAL), b.attr(unix.IFA_LOCAL)) &&
		bytes.Equal(a.attr(unix.IFA_ADDRESS), b.attr(unix.IFA_ADDRESS))
}

// IsIPv6 reports the family of an address, route, rule or neighbour.
func (o Object) IsIPv6() bool { return o.family() == unix.AF_INET6 }

// Has reports whether want is among the addresses of have.
func Has(have []Object, want Object) bool {
	return slices.ContainsFunc(have, func(o Object) bool { return SameAddress(o, want) })
}

// PutAddresses adds those of the addresses that have lacks.
func PutAddresses(want, have []Object) error {
	missing := slices.DeleteFunc(slices.Clone(want), func(o Object) bool { return Has(have, o) })
	return each("adding", missing, Object.ensure)
}

// ChangeAddresses gives existing addresses the flags and lifetimes that they have in want. The kernel does that for
// IPv6 only.
func ChangeAddresses(want []Object) error {
	want = slices.DeleteFunc(slices.Clone(want), func(o Object) bool { return !o.IsIPv6() })
	return each("changing", want, func(o Object) error { return o.send(unix.RTM_NEWADDR, unix.NLM_F_REPLACE) })
}

// EqualAddresses reports that a and b are equal except for lifetimes and what the kernel computes. Interfaces are not
// compared.
func EqualAddresses(a, b Object) bool {
	plain := func(o Object) string {
		o, _ = AddressOn(o, Iface{}, Iface{}, 0, 0)
		return o.edit(func([]byte) {}, func(a attr) []byte {
			if a.typ == unix.IFA_CACHEINFO {
				return nil
			}
			return a.value
		}).Describe(nil)
	}
	return plain(a) == plain(b)
}

// KernelGenerated reports an address that the kernel generates, such as a link-local one.
func (o Object) KernelGenerated() bool {
	p := o.attr(ifaProto)
	return len(p) == 1 && p[0] != 0 && p[0] <= 3 || o.Temporary() // IFAPROT_KERNEL_LO, _RA, _LL
}

// WithLifetimesOf returns the address o with the lifetimes of now.
func WithLifetimesOf(o, now Object) Object {
	return o.edit(func([]byte) {}, func(a attr) []byte {
		if c := now.attr(unix.IFA_CACHEINFO); a.typ == unix.IFA_CACHEINFO && len(c) >= 8 {
			return c
		}
		return a.value
	})
}

// IP returns the host's own address, of 4 or 16 bytes.
func (o Object) IP() net.IP {
	if local := o.attr(unix.IFA_LOCAL); local != nil {
		return local
	}
	return o.attr(unix.IFA_ADDRESS)
}

// Valid returns how long the address is valid from when it was read.
func (o Object) Valid() string {
	c := o.attr(unix.IFA_CACHEINFO)
	if len(c) < 8 {
		return lifetime(forever)
	}
	return lifetime(binary.NativeEndian.Uint32(c[4:]))
}
