package hoststate

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/datapath/internal/kernel"
)

// Iface is an interface that objects are on.
type Iface struct {
	Name  string `json:"name"`
	Index int    `json:"index"`
}

// Link is what the host has on one interface.
type Link struct {
	Iface
	// MAC is in the form 02:00:00:00:00:01, MTU in bytes, Flags as in netdevice(7).
	MAC      string   `json:"mac"`
	MTU      int      `json:"mtu"`
	Flags    uint32   `json:"flags"`
	AltNames []string `json:"altNames,omitempty"`
	// Sysctls are the interface's own network parameters, by family, directory and name: "ipv4/conf/rp_filter".
	Sysctls map[string]string `json:"sysctls"`
	// Addresses are in the kernel's order, without temporary ones (RFC 8981), which the kernel generates. Routes are those
	// of all tables through the interface, alone or among others, except the kernel's own in table local, and Fairlead's.
	// Rules name the interface. Neighbours are the permanent ones, including proxies.
	Addresses  []Object `json:"addresses"`
	Routes     []Object `json:"routes"`
	Rules      []Object `json:"rules"`
	Neighbours []Object `json:"neighbours"`
	// ReadAt is the time since boot when it was read: lifetimes count from then.
	ReadAt time.Duration `json:"readAt"`
}

// Check rejects a state that Read cannot have returned.
func (l Link) Check() error {
	if l.Name == "" || l.Index <= 0 || l.MTU <= 0 {
		return fmt.Errorf("the interface %q has index %d and MTU %d", l.Name, l.Index, l.MTU)
	}
	for _, o := range slices.Concat(l.Addresses, l.Routes, l.Rules, l.Neighbours) {
		if err := o.Check(); err != nil {
			return err
		}
	}
	return nil
}

// Read reads the state of the interface called name.
func Read(name string) (Link, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return Link{}, fmt.Errorf("looking up interface %s: %w", name, err)
	}
	a := link.Attrs()
	l := Link{Iface: Iface{a.Name, a.Index}, MAC: a.HardwareAddr.String(), MTU: a.MTU, Flags: a.RawFlags,
		AltNames: a.AltNames, ReadAt: SinceBoot()}
	if l.Sysctls, err = Sysctls(a.Name); err != nil {
		return l, err
	}
	if err := l.readObjects(); err != nil {
		return l, fmt.Errorf("reading the configuration of interface %s: %w", name, err)
	}
	return l, nil
}

func (l *Link) readObjects() error {
	names, err := LinkNames()
	if err != nil {
		return err
	}
	for _, part := range []struct {
		into *[]Object
		list func(Iface) ([]Object, error)
	}{{&l.Addresses, AddressesOf}, {&l.Routes, RoutesOf}, {&l.Rules, RulesOf}, {&l.Neighbours, permanentNeighboursOf}} {
		all, err := part.list(l.Iface)
		if err != nil {
			return err
		}
		for i := range all {
			all[i].Text = all[i].Describe(names)
		}
		*part.into = all
	}
	l.Routes = slices.DeleteFunc(l.Routes, Object.IsFairleads)
	return nil
}

// LinkNames returns the names of all interfaces.
func LinkNames() (Names, error) {
	links, err := kernel.Dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("listing interfaces: %w", err)
	}
	n := Names{}
	for _, l := range links {
		n[l.Attrs().Index] = l.Attrs().Name
	}
	return n, nil
}

// List lists all objects of a kind, of IPv4 and IPv6. In other families bridges and tunnels have forwarding entries,
// which are not neighbours.
func List(kind Kind) ([]Object, error) {
	v4, err := dump(kind, unix.AF_INET, 0)
	if err != nil || !kernel.HasIPv6() {
		return v4, err
	}
	v6, err := dump(kind, unix.AF_INET6, 0)
	return slices.Concat(v4, v6), err
}

// AddressesOf lists the addresses of an interface except temporary ones.
func AddressesOf(p Iface) ([]Object, error) {
	all, err := List(Address)
	return slices.DeleteFunc(all, func(o Object) bool { return !o.isOn(p) || o.Temporary() }), err
}

// Temporary reports an address of RFC 8981. For IPv4 the bit means "secondary".
func (o Object) Temporary() bool {
	return o.family() == unix.AF_INET6 && o.number(unix.IFA_FLAGS)&unix.IFA_F_TEMPORARY != 0
}

// RoutesOf lists the routes of all tables that lead through the interface, alone or among others, except those that the
// kernel adds in table local for each address and interface.
func RoutesOf(p Iface) ([]Object, error) {
	all, err := List(Route)
	return slices.DeleteFunc(all, func(o Object) bool { return !o.leadsTo(p) || o.kernelsOwn() }), err
}

func (o Object) leadsTo(p Iface) bool {
	if int(o.number(unix.RTA_OIF)) == p.Index {
		return true
	}
	found := false
	eachHop(o.attr(unix.RTA_MULTIPATH), func(hop []byte) {
		found = found || int(binary.NativeEndian.Uint32(hop[4:])) == p.Index
	})
	return found
}

func (o Object) kernelsOwn() bool {
	return o.number(unix.RTA_TABLE) == unix.RT_TABLE_LOCAL && o.header()[5] == unix.RTPROT_KERNEL
}

// Numbers of linux/fib_rules.h.
const (
	fraIIF, fraOIF = 3, 17
	// fraInvert is the only flag that may be set; the others report the rule's state.
	fraInvert = 2
)

// RulesOf lists the rules that name the interface.
func RulesOf(p Iface) ([]Object, error) {
	all, err := List(Rule)
	return slices.DeleteFunc(all, func(o Object) bool {
		return cString(o.attr(fraIIF)) != p.Name && cString(o.attr(fraOIF)) != p.Name
	}), err
}

func cString(b []byte) string {
	if i := slices.Index(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}

func permanentNeighboursOf(p Iface) ([]Object, error) {
	all, err := PermanentNeighbours()
	return slices.DeleteFunc(all, func(o Object) bool { return !o.isOn(p) }), err
}

// isOn reports whether an address or neighbour is on p.
func (o Object) isOn(p Iface) bool { return int(binary.NativeEndian.Uint32(o.header()[4:])) == p.Index }

// PermanentNeighbours returns configured neighbours, and proxies.
func PermanentNeighbours() ([]Object, error) {
	all, err := List(Neighbour)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(o Object) bool { return o.state() != unix.NUD_PERMANENT })
	proxies, err := dump(Neighbour, unix.AF_UNSPEC, unix.NTF_PROXY)
	return slices.Concat(all, proxies), err
}

func (o Object) state() uint16 { return binary.NativeEndian.Uint16(o.header()[8:]) }

// SinceBoot returns the time since boot, including suspend (CLOCK_BOOTTIME).
func SinceBoot() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // every kernel has this clock
	return time.Duration(ts.Nano())
}
