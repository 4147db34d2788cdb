// Package netstate reads the network state of a node, and compares two states.
package netstate

import (
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/datapath/uplink/hoststate"
)

// Node is the network state of a node, as "ip -d addr", "ip route show table all", "ip rule", "ip neigh" and sysctl(8)
// show it: sorted lines. It is normalised: no counters and no indexes of interfaces, no neighbours except permanent
// ones and proxies, no temporary addresses of IPv6 (RFC 8981).
type Node struct {
	Lines []string
	// At is when it was read, in time since boot.
	At time.Duration
}

// Read reads the calling thread's network namespace.
func Read() (Node, error) {
	links, err := netlink.LinkList()
	for errors.Is(err, netlink.ErrDumpInterrupted) {
		links, err = netlink.LinkList()
	}
	if err != nil {
		return Node{}, fmt.Errorf("listing interfaces: %w", err)
	}
	names := hoststate.Names{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	node := Node{At: hoststate.SinceBoot()}
	for _, l := range links {
		node.Lines = append(node.Lines, linkText(l, names))
		sysctls, err := hoststate.Sysctls(l.Attrs().Name)
		if err != nil {
			return Node{}, err
		}
		for parameter, value := range sysctls {
			node.Lines = append(node.Lines, "sysctl "+l.Attrs().Name+" "+parameter+" "+value)
		}
	}
	for _, list := range []func() ([]hoststate.Object, error){
		func() ([]hoststate.Object, error) { return hoststate.List(hoststate.Address) },
		func() ([]hoststate.Object, error) { return hoststate.List(hoststate.Route) },
		func() ([]hoststate.Object, error) { return hoststate.List(hoststate.Rule) },
		hoststate.PermanentNeighbours} {
		all, err := list()
		if err != nil {
			return Node{}, err
		}
		for _, o := range all {
			if o.Kind != hoststate.Address || !o.Temporary() {
				node.Lines = append(node.Lines, o.Describe(names))
			}
		}
	}
	slices.Sort(node.Lines)
	return node, nil
}

func linkText(l netlink.Link, names hoststate.Names) string {
	a := l.Attrs()
	alt := slices.Sorted(slices.Values(a.AltNames))
	master, parent := "-", "-"
	if a.MasterIndex != 0 {
		master = names[a.MasterIndex]
	}
	if a.ParentIndex != 0 && a.NetNsID < 0 { // the index is in this namespace
		parent = names[a.ParentIndex]
	}
	return fmt.Sprintf("link %s kind %s mac %s mtu %d flags %s promiscuity %d allmulti %d master %s parent %s state %s "+
		"txqueuelen %d group %d altnames %v alias %q", a.Name, l.Type(), a.HardwareAddr, a.MTU,
		linkFlags(a.RawFlags), a.Promisc, a.Allmulti, master, parent, a.OperState, a.TxQLen, a.Group, alt, a.Alias)
}

// linkFlags names the flags of netdevice(7) that are set by configuration.
func linkFlags(raw uint32) string {
	const others = unix.IFF_NOARP | unix.IFF_DYNAMIC | unix.IFF_MULTICAST
	text := []string{fmt.Sprintf("%#x", raw&others)}
	for _, f := range []struct {
		bit  uint32
		name string
	}{{unix.IFF_UP, net.FlagUp.String()}, {unix.IFF_PROMISC, "promisc"}, {unix.IFF_ALLMULTI, "allmulti"}} {
		if raw&f.bit != 0 {
			text = append(text, f.name)
		}
	}
	return strings.Join(text, ",")
}

// slack is how many seconds two lifetimes may differ: the time between reading and writing one, several times in a
// chain of moves, on an overloaded machine.
const slack = 20

// Differences lists what only after has ("+ …"), and what only before has ("- …"). Remaining lifetimes may differ by
// slack from the value expected after the time between the two.
func (before Node) Differences(after Node) (lines []string) {
	left := slices.Clone(after.Lines)
	elapsed := int((after.At - before.At) / time.Second)
	for _, want := range before.Lines {
		i := slices.IndexFunc(left, func(have string) bool { return alike(want, have, elapsed) })
		if i < 0 {
			lines = append(lines, "- "+want)
			continue
		}
		left = slices.Delete(left, i, i+1)
	}
	for _, have := range left {
		lines = append(lines, "+ "+have)
	}
	return lines
}

var seconds = regexp.MustCompile(` (valid|preferred|expires)=(\d+)s`)

// alike compares two lines, of which b was read elapsed seconds later.
func alike(a, b string, elapsed int) bool {
	la, lb := seconds.FindAllStringSubmatch(a, -1), seconds.FindAllStringSubmatch(b, -1)
	if len(la) != len(lb) || seconds.ReplaceAllString(a, " $1") != seconds.ReplaceAllString(b, " $1") {
		return false
	}
	for i := range la {
		sa, _ := strconv.Atoi(la[i][2]) // digits
		sb, _ := strconv.Atoi(lb[i][2])
		if d := sa - elapsed - sb; d > slack || d < -slack {
			return false
		}
	}
	return true
}
