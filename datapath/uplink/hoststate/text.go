package hoststate

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Names are interface names by index. Texts show names, for people.
type Names map[int]string

func (n Names) of(index uint32) string {
	if name, ok := n[int(index)]; ok {
		return name
	}
	return "#" + strconv.Itoa(int(index))
}

// shapes say how the value of an attribute is printed.
type shape int

const (
	number shape = iota // of 1, 2 or 4 bytes
	addr                // IPv4 or IPv6
	device              // an interface's index
	word                // a string
	ether               // a link-layer address
	silent              // counters, and what the header or another attribute says too
	ages                // of an address
	expiry              // of a route
	hops                // of a multipath route
	nested              // attributes in an attribute
)

// field is how an attribute is printed: "name value".
type field struct {
	name  string
	shape shape
}

// The attributes of linux/if_addr.h, rtnetlink.h, fib_rules.h and neighbour.h. An attribute missing here is printed as
// its number and bytes.
var fields = map[Kind]map[uint16]field{
	Address: {unix.IFA_ADDRESS: {"peer", addr}, unix.IFA_LOCAL: {"local", addr}, unix.IFA_LABEL: {"label", word},
		unix.IFA_BROADCAST: {"brd", addr}, unix.IFA_CACHEINFO: {"", ages}, unix.IFA_FLAGS: {"flags", number},
		unix.IFA_RT_PRIORITY: {"metric", number}, 11: {"proto", number}},
	Route: {unix.RTA_DST: {"to", addr}, unix.RTA_SRC: {"from", addr}, unix.RTA_OIF: {"dev", device},
		unix.RTA_GATEWAY: {"via", addr}, unix.RTA_PRIORITY: {"metric", number}, unix.RTA_PREFSRC: {"src", addr},
		unix.RTA_METRICS: {"options", nested}, unix.RTA_MULTIPATH: {"nexthops", hops}, unix.RTA_FLOW: {"realm", number},
		unix.RTA_CACHEINFO: {"", expiry}, unix.RTA_TABLE: {"table", number}, unix.RTA_PREF: {"pref", number},
		unix.RTA_EXPIRES: {"", silent}, unix.RTA_ENCAP: {"encap", nested}, unix.RTA_ENCAP_TYPE: {"encap-type", number},
		30: {"nhid", number}},
	Rule: {1: {"to", addr}, 2: {"from", addr}, 3: {"iif", word}, 4: {"goto", number}, 6: {"priority", number},
		10: {"fwmark", number}, 15: {"table", number}, 16: {"mask", number}, 17: {"oif", word}, 21: {"proto", number},
		22: {"ipproto", number}},
	Neighbour: {unix.NDA_DST: {"to", addr}, unix.NDA_LLADDR: {"lladdr", ether}, unix.NDA_CACHEINFO: {"", silent},
		unix.NDA_PROBES: {"", silent}, 12: {"proto", number}},
}

// Describe formats the object, all of it except counters: two objects with the same text are equal. Lifetimes are at
// the end as "valid=3600s".
func (o Object) Describe(n Names) string {
	words := []string{string(o.Kind)}
	h := o.header()
	switch o.Kind {
	case Address:
		words = append(words, fmt.Sprintf("/%d scope %d dev %s", h[1], h[3], n.of(binary.NativeEndian.Uint32(h[4:]))))
	case Route:
		words = append(words, fmt.Sprintf("/%d from /%d tos %d proto %d scope %d type %d flags %#x", h[1], h[2], h[3], h[5],
			h[6], h[7], binary.NativeEndian.Uint32(h[8:])&unix.RTNH_F_ONLINK))
	case Rule:
		words = append(words, fmt.Sprintf("/%d from /%d tos %d action %d flags %#x", h[1], h[2], h[3], h[7],
			binary.NativeEndian.Uint32(h[8:])))
	case Neighbour:
		words = append(words, fmt.Sprintf("dev %s state %#x flags %#x type %d", n.of(binary.NativeEndian.Uint32(h[4:])),
			binary.NativeEndian.Uint16(h[8:]), h[10], h[11]))
	}
	attrs := o.attrs()
	slices.SortStableFunc(attrs, func(a, b attr) int { return int(a.typ) - int(b.typ) })
	var last []string
	for _, a := range attrs {
		f := fieldOf(o.Kind, a)
		switch t := f.text(a.value, n); {
		case f.shape == ages || f.shape == expiry:
			last = append(last, t)
		case f.shape != silent:
			words = append(words, f.name+" "+t)
		}
	}
	return strings.TrimSpace(strings.Join(append(words, last...), " "))
}

func fieldOf(kind Kind, a attr) field {
	if f, known := fields[kind][a.typ]; known {
		return f
	}
	return field{"attribute-" + strconv.Itoa(int(a.typ)), nested}
}

func (f field) text(v []byte, n Names) string {
	switch f.shape {
	case number:
		switch len(v) {
		case 1:
			return strconv.Itoa(int(v[0]))
		case 2:
			return strconv.Itoa(int(binary.NativeEndian.Uint16(v)))
		case 4:
			return strconv.FormatUint(uint64(binary.NativeEndian.Uint32(v)), 10)
		}
	case addr:
		if ip, ok := netip.AddrFromSlice(v); ok {
			return ip.String()
		}
	case device:
		if len(v) == 4 {
			return n.of(binary.NativeEndian.Uint32(v))
		}
	case word:
		return strings.TrimRight(string(v), "\x00")
	case ages:
		if len(v) >= 8 {
			return "valid=" + lifetime(binary.NativeEndian.Uint32(v[4:])) +
				" preferred=" + lifetime(binary.NativeEndian.Uint32(v))
		}
	case expiry:
		if s := expires(v); s > 0 {
			return "expires=" + lifetime(s)
		}
		return ""
	case hops:
		return hopsText(v, n)
	}
	return hex.EncodeToString(v)
}

// lifetime formats seconds; all ones is forever.
func lifetime(s uint32) string {
	if s == forever {
		return "forever"
	}
	return strconv.FormatUint(uint64(s), 10) + "s"
}

const forever = 1<<32 - 1

// expires reads from struct rta_cacheinfo a route's remaining seconds, rounded up; 0 is forever. The kernel reports
// hundredths (USER_HZ).
func expires(cacheinfo []byte) uint32 {
	if len(cacheinfo) < 12 {
		return 0
	}
	left := int32(binary.NativeEndian.Uint32(cacheinfo[8:]))
	if left <= 0 {
		return 0
	}
	return (uint32(left) + 99) / 100
}

func hopsText(v []byte, n Names) string {
	var words []string
	each := func(hop []byte) {
		w := fmt.Sprintf("dev %s weight %d flags %#x", n.of(binary.NativeEndian.Uint32(hop[4:])), int(hop[3])+1,
			hop[2]&unix.RTNH_F_ONLINK)
		attrs, _ := parseAttrs(hop[unix.SizeofRtNexthop:])
		for _, a := range attrs {
			f := fieldOf(Route, a)
			w += " " + f.name + " " + f.text(a.value, n)
		}
		words = append(words, w)
	}
	eachHop(v, each)
	return "[" + strings.Join(words, ", ") + "]"
}

// eachHop calls do with each struct rtnexthop of a multipath route, and the attributes after it.
func eachHop(v []byte, do func(hop []byte)) {
	for len(v) >= unix.SizeofRtNexthop {
		size := int(binary.NativeEndian.Uint16(v))
		if size < unix.SizeofRtNexthop || size > len(v) {
			return
		}
		do(v[:size])
		v = v[min(align(size), len(v)):]
	}
}
