package link

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/datapath/internal/kernel"
	"github.com/fairlead-cni/fairlead/internal/netaddr"
)

// Check reports every difference between an attachment and l. Additional addresses and routes in the pod are ignored.
func Check(l PodLink) error {
	pod, err := openPod(l.Netns)
	if err != nil {
		return fmt.Errorf("checking %s in %s: %w", l.IfName, l.Netns, err)
	}
	defer pod.Close()
	host, err := hostLink(l.HostIf)
	if err == nil && host == nil {
		err = fmt.Errorf("interface %s is missing on the node", l.HostIf)
	}
	if err == nil {
		if wrong := l.differences(host, pod); len(wrong) > 0 {
			err = errors.New(strings.Join(wrong, "; "))
		}
	}
	if err != nil {
		return fmt.Errorf("checking %s of %s in %s: %w", l.IfName, l.HostIf, l.Netns, err)
	}
	return nil
}

func (l PodLink) differences(host netlink.Link, pod ns.NetNS) []string {
	var wrong []string
	if host.Attrs().RawFlags&unix.IFF_UP == 0 {
		wrong = append(wrong, "host end is down")
	}
	if got := host.Attrs().MTU; got != l.MTU {
		wrong = append(wrong, fmt.Sprintf("host end has MTU %d, want %d", got, l.MTU))
	}
	err := pod.Do(func(ns.NetNS) error {
		inPod, err := l.podDifferences(host)
		wrong = append(wrong, inPod...)
		return err
	})
	if err != nil {
		wrong = append(wrong, err.Error())
	}
	return wrong
}

func (l PodLink) podDifferences(host netlink.Link) ([]string, error) {
	link, err := netlink.LinkByName(l.IfName)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return []string{fmt.Sprintf("the pod has no interface %s", l.IfName)}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking up %s: %w", l.IfName, err)
	}
	var wrong []string
	say := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	a := link.Attrs()
	if a.ParentIndex != host.Attrs().Index || host.Attrs().ParentIndex != a.Index {
		say("%s is not the other end of %s", l.IfName, l.HostIf)
	}
	if a.RawFlags&unix.IFF_UP == 0 {
		say("%s is down", l.IfName)
	}
	if got := a.HardwareAddr.String(); got != l.MAC.String() {
		say("%s has MAC %s, want %s", l.IfName, got, l.MAC)
	}
	if a.MTU != l.MTU {
		say("%s has MTU %d, want %d", l.IfName, a.MTU, l.MTU)
	}
	if l.TxOff {
		on, err := txChecksums(l.IfName)
		if err != nil {
			return wrong, err
		}
		if on {
			say("tx checksum offload of %s is on, want off", l.IfName)
		}
	}
	l3, err := l.layer3Differences(link)
	return append(wrong, l3...), err
}

// layer3Differences looks for the wanted addresses and routes.
func (l PodLink) layer3Differences(link netlink.Link) ([]string, error) {
	var wrong []string
	addrs, err := kernel.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("listing addresses of %s: %w", l.IfName, err)
	}
	for _, want := range l.Addrs {
		i := slices.IndexFunc(addrs, func(a netlink.Addr) bool { return netaddr.Prefix(a.IPNet) == want })
		if i < 0 {
			wrong = append(wrong, fmt.Sprintf("%s lacks address %s", l.IfName, want))
		} else if addrs[i].Flags&(unix.IFA_F_DADFAILED|unix.IFA_F_TENTATIVE) != 0 {
			wrong = append(wrong, fmt.Sprintf("address %s is not usable (tentative, or duplicate address detected)", want))
		}
	}
	routes, err := kernel.Dump(func() ([]netlink.Route, error) { return netlink.RouteList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("listing routes of %s: %w", l.IfName, err)
	}
	for _, want := range l.routes(link.Attrs().Index) {
		if !slices.ContainsFunc(routes, func(r netlink.Route) bool { return sameRoute(r, want) }) {
			wrong = append(wrong, fmt.Sprintf("%s lacks route %s", l.IfName, describe(want)))
		}
	}
	return wrong, nil
}

func sameRoute(a, b netlink.Route) bool {
	return netaddr.Prefix(a.Dst) == netaddr.Prefix(b.Dst) && a.Gw.Equal(b.Gw)
}
