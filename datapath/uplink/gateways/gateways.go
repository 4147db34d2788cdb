// Package gateways probes the node's default gateways, through the host's own interface or on the wire of a NIC. It
// changes nothing but the state of their neighbour entries.
package gateways

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/datapath/internal/kernel"
	"github.com/fairlead-cni/fairlead/datapath/wire"
)

// Check returns nil if a default gateway of that interface answers ARP or neighbour discovery. The kernel probes: an
// entry set to PROBE is confirmed by an answer, or fails after 3 s. It is then probed again, by broadcast: some
// gateways answer nothing else. If there is no default gateway, nothing is known, and it returns ErrNone.
func Check(ctx context.Context, name string) error {
	link, gateways, err := of(name)
	if err != nil {
		return err
	}
	_, err = probeAny(ctx, link, gateways)
	if err == nil || ctx.Err() == nil {
		return err
	}
	return fmt.Errorf("timed out waiting for an answer from the default gateway %s", text(gateways))
}

func text(gateways []net.IP) string {
	var out []string
	for _, ip := range gateways {
		out = append(out, ip.String())
	}
	return strings.Join(out, " or ")
}

// Neighbour probes, as Check does, those of an interface's neighbours that wanted selects, and returns their number,
// and one that answers; invalid if none does until ctx ends.
func Neighbour(ctx context.Context, name string, wanted func(netip.Addr) bool) (a netip.Addr, asked int, err error) {
	link, err := kernel.Dump(func() (netlink.Link, error) { return netlink.LinkByName(name) })
	if err != nil {
		return a, 0, fmt.Errorf("looking up interface %s: %w", name, err)
	}
	known, err := neighbours(link)
	if err != nil {
		return a, 0, err
	}
	var ips []net.IP
	for _, n := range known {
		if to, _ := netip.AddrFromSlice(n.IP); n.State&unix.NUD_NOARP == 0 && wanted(to.Unmap()) {
			ips = append(ips, n.IP)
		}
	}
	if len(ips) == 0 {
		return a, 0, nil
	}
	ip, err := probeAny(ctx, link, ips)
	if ctx.Err() != nil {
		err = nil
	}
	a, _ = netip.AddrFromSlice(ip)
	return a.Unmap(), len(ips), err
}

func neighbours(link netlink.Link) ([]netlink.Neigh, error) {
	known, err := kernel.Dump(func() ([]netlink.Neigh, error) { return netlink.NeighList(link.Attrs().Index, 0) })
	if err != nil {
		return nil, fmt.Errorf("listing neighbours of %s: %w", link.Attrs().Name, err)
	}
	return known, nil
}

// probeAny has the kernel probe neighbours until one answers, or ctx ends.
func probeAny(ctx context.Context, link netlink.Link, ips []net.IP) (net.IP, error) {
	for _, ip := range ips {
		if err := probe(link, ip); err != nil {
			return nil, err
		}
	}
	again := map[string]bool{}
	for {
		known, err := neighbours(link)
		if err != nil {
			return nil, err
		}
		for _, n := range known {
			switch {
			case hasAnswered(n, ips):
				return n.IP, nil
			case slices.ContainsFunc(ips, n.IP.Equal) && n.State&unix.NUD_FAILED != 0 && !again[n.IP.String()]:
				again[n.IP.String()] = true
				if err := probe(link, n.IP); err != nil {
					return nil, err
				}
			}
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pollInterval):
		}
	}
}

// hasAnswered reports whether an entry belongs to one of ips that has answered.
func hasAnswered(n netlink.Neigh, ips []net.IP) bool {
	return slices.ContainsFunc(ips, n.IP.Equal) && n.State&(unix.NUD_REACHABLE|unix.NUD_PERMANENT) != 0
}

// OnWire returns nil if a default gateway of the interface name answers on the wire of nic, which needs no route and
// passes no bridge. If there is no default gateway, it returns ErrNone.
func OnWire(ctx context.Context, name, nic string) error {
	_, gateways, err := of(name)
	if err != nil {
		return err
	}
	used, err := wire.Probe(ctx, wire.ProbeRequest{NIC: nic, Addrs: addrs(gateways), Timeout: wireLimit})
	if err == nil && len(used) == 0 {
		err = fmt.Errorf("no default gateway answers on %s itself: %s", nic, text(gateways))
	}
	return err
}

func addrs(ips []net.IP) (out []netip.Addr) {
	for _, ip := range ips {
		if a, ok := netip.AddrFromSlice(ip); ok {
			out = append(out, a.Unmap())
		}
	}
	return out
}

// Silent returns the default gateways of an interface if none of them answers, probed by the kernel and by broadcast on
// the wire, as some gateways answer only one of these; "" if one answers, or there is none. It takes wait at most.
func Silent(ctx context.Context, name string, wait time.Duration) (string, error) {
	link, gateways, err := of(name)
	if errors.Is(err, ErrNone) {
		return "", nil
	} else if err != nil {
		return "", err
	}
	for _, ip := range gateways {
		if err := probe(link, ip); err != nil {
			return "", err
		}
	}
	used, err := wire.Probe(ctx, wire.ProbeRequest{NIC: name, Addrs: addrs(gateways), Timeout: wait})
	if err != nil || len(used) > 0 {
		return "", err
	}
	known, err := neighbours(link)
	if err != nil || slices.ContainsFunc(known, func(n netlink.Neigh) bool { return hasAnswered(n, gateways) }) {
		return "", err
	}
	return text(gateways), nil
}

// of returns the interface and its default gateways, at least one.
func of(name string) (netlink.Link, []net.IP, error) {
	link, err := kernel.Dump(func() (netlink.Link, error) { return netlink.LinkByName(name) })
	if err != nil {
		return nil, nil, fmt.Errorf("looking up interface %s: %w", name, err)
	}
	gateways, err := gatewaysOf(link)
	if err == nil && len(gateways) == 0 {
		err = ErrNone
	}
	return link, gateways, err
}

const (
	// pollInterval is how often to check for an answer: short, since packets may be waiting.
	pollInterval = 300 * time.Microsecond
	// wireLimit is how long to wait for answers on the wire.
	wireLimit = 2 * time.Second
)

// ErrNone says that there is no default gateway whose answer could prove that the node is reached.
var ErrNone = errors.New("there is no default gateway")

func gatewaysOf(link netlink.Link) (gateways []net.IP, err error) {
	routes, err := kernel.Dump(func() ([]netlink.Route, error) { return netlink.RouteList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("listing routes: %w", err)
	}
	for _, r := range routes {
		if r.Dst != nil && !r.Dst.IP.IsUnspecified() {
			continue
		}
		if r.LinkIndex == link.Attrs().Index && r.Gw != nil {
			gateways = append(gateways, r.Gw)
		}
		for _, hop := range r.MultiPath {
			if hop.LinkIndex == link.Attrs().Index && hop.Gw != nil {
				gateways = append(gateways, hop.Gw)
			}
		}
	}
	return gateways, nil
}

// probe has the kernel probe a neighbour. One without an entry must be added first.
func probe(link netlink.Link, ip net.IP) error {
	n := netlink.Neigh{LinkIndex: link.Attrs().Index, IP: ip, State: unix.NUD_PROBE}
	known, err := neighbours(link)
	if err != nil {
		return err
	}
	for _, k := range known {
		if k.IP.Equal(ip) && len(k.HardwareAddr) > 0 {
			if k.State == unix.NUD_PERMANENT {
				return nil
			}
			n.HardwareAddr = k.HardwareAddr
			return netlink.NeighSet(&n)
		}
	}
	n.State, n.Flags = unix.NUD_NONE, unix.NTF_USE
	if err := netlink.NeighSet(&n); err != nil {
		return fmt.Errorf("resolving the gateway %s: %w", ip, err)
	}
	return nil
}
