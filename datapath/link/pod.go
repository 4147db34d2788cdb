package link

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/internal/kernel"
)

// PodLink is the veth of one attachment.
type PodLink struct {
	// Netns is the path of the pod's network namespace, IfName the interface
	// in it, HostIf the other end in the node's namespace: see HostName.
	Netns, IfName, HostIf string
	MAC                   api.MAC
	// MTU of both ends in bytes, 68 or more, 1280 or more with IPv6.
	MTU int
	// Addrs are the pod's addresses with their masks, one or more.
	Addrs []netip.Prefix
	// Gateways get a default route each; at most one of a family, and only
	// of families that the pod has an address of. A gateway that no address's
	// mask covers gets a route of its own.
	Gateways []netip.Addr
	// TxOff has the pod compute checksums itself. The userspace datapath
	// needs it: it forwards frames as they are, and TCP without a checksum
	// is dropped by the receiver.
	TxOff bool
}

// Veth is one that Create has made. Configure must be called, once.
type Veth struct {
	PodLink
	pod     ns.NetNS
	netlink *netlink.Handle // of the pod's namespace
	ready   bool            // it was there, as wanted
}

// ErrTaken is in an error of Create for a name that the pod has already.
var ErrTaken = errors.New("the pod already has an interface")

// Create makes the veth with both ends up: the host's can become a port, the pod's
// has no address. Whatever ovs-vswitchd hears of an interface after it has made a
// port of it makes it drop what others set up there, as the plugin bandwidth does.
// Create changes nothing when all is there as wanted, and makes the veth anew
// when ours is there but different, as after a crash. When it fails neither end
// remains. Let one run at a time: the kernel does too, and whoever writes a sysctl of
// IPv6 meanwhile burns a processor until it is his turn.
func Create(l PodLink) (*Veth, error) {
	if err := l.validate(); err != nil {
		return nil, fmt.Errorf("attaching %s: %w", l.HostIf, err)
	}
	v := &Veth{PodLink: l}
	if err := v.make(); err != nil {
		v.close()
		return nil, l.failed(err)
	}
	return v, nil
}

// Configure switches the pod's end's offload off, and gives it its addresses and routes: whatever runs in the pod
// already must not send before. When it fails both ends remain: ovs-vswitchd may be at work on the host's.
func (v *Veth) Configure() error {
	defer v.close()
	if v.ready {
		return nil
	}
	var err error
	if v.TxOff {
		err = v.pod.Do(func(ns.NetNS) error { return txChecksumsOff(v.IfName) })
	}
	if err == nil {
		err = v.addressPod()
	}
	if err != nil {
		return v.failed(err)
	}
	return nil
}

func (v *Veth) close() {
	if v.netlink != nil {
		v.netlink.Close()
	}
	if v.pod != nil {
		v.pod.Close()
	}
}

func (l PodLink) failed(err error) error {
	return fmt.Errorf("attaching %s to %s in %s: %w", l.HostIf, l.IfName, l.Netns, err)
}

func (v *Veth) make() (err error) {
	if v.pod, err = openPod(v.Netns); err != nil {
		return err
	}
	switch host, err := hostLink(v.HostIf); {
	case err != nil:
		return err
	case host == nil:
	case len(v.differences(host, v.pod)) == 0:
		v.ready = true
		return nil
	default:
		if err := remove(host); err != nil {
			return err
		}
	}
	if err := v.create(v.pod); err != nil {
		return err
	}
	err = silence(v.HostIf)
	if err == nil {
		err = v.pod.Do(func(ns.NetNS) error { return v.podUp() })
	}
	if err != nil {
		err = errors.Join(err, Detach(v.HostIf))
	}
	return err
}

// create makes both ends. Where the name is taken in the pod, it may be by an interface that is retired.
func (l PodLink) create(pod ns.NetNS) error {
	err := l.add(pod)
	if errors.Is(err, unix.EEXIST) {
		if err := Reap(); err != nil {
			return err
		}
		err = l.add(pod)
	}
	if errors.Is(err, unix.EEXIST) {
		// The host's name was free a moment ago.
		return fmt.Errorf("%w %s, which Fairlead did not create: remove it, or use another name in the CNI configuration",
			ErrTaken, l.IfName)
	}
	if err != nil {
		return fmt.Errorf("making the veth: %w", err)
	}
	return nil
}

// add makes both ends in one request: no instant exists at which an end
// has a wrong name, is in the wrong namespace or lacks our mark. The host's end is
// promiscuous from the first: else ovs-vswitchd makes it so, hears of that as of any
// change of an interface, and looks at all its ports once more.
func (l PodLink) add(pod ns.NetNS) error {
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	up := nl.NewIfInfomsg(unix.AF_UNSPEC)
	up.Flags = unix.IFF_UP | unix.IFF_PROMISC
	up.Change = up.Flags
	req.AddData(up)
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(l.HostIf)))
	req.AddData(nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(l.MTU))))
	req.AddData(nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(Group)))
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("veth"))
	peer := info.AddRtAttr(nl.IFLA_INFO_DATA, nil).AddRtAttr(nl.VETH_INFO_PEER, nil)
	nl.NewIfInfomsgChild(peer, unix.AF_UNSPEC)
	peer.AddRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(l.IfName))
	peer.AddRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(l.MTU)))
	peer.AddRtAttr(unix.IFLA_ADDRESS, l.MAC[:])
	peer.AddRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(pod.Fd())))
	req.AddData(info)
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// silence keeps the node's own stack off the host's end. On the userspace
// datapath the kernel sees every frame of a port too and would answer the
// pod's ARP requests for any address of the node; with IPv6 it would join
// groups and solicit routers in the pod's network.
func silence(hostIf string) error {
	if err := kernel.WriteSysctl("8", "ipv4", "conf", hostIf, "arp_ignore"); err != nil {
		return err
	}
	if !kernel.HasIPv6() {
		return nil
	}
	return kernel.WriteSysctl("1", "ipv6", "conf", hostIf, "disable_ipv6")
}

// Detach removes a veth by its host end and with it the pod's end. One that
// is not there counts as removed; one that is not ours is refused.
func Detach(hostIf string) error {
	host, err := hostLink(hostIf)
	if err == nil && host != nil {
		err = remove(host)
	}
	if err != nil {
		return fmt.Errorf("detaching %s: %w", hostIf, err)
	}
	return nil
}

func remove(host netlink.Link) error {
	err := netlink.LinkDel(host)
	if err != nil && !errors.Is(err, unix.ENODEV) { // it goes by itself when the pod's namespace goes
		return fmt.Errorf("deleting the veth: %w", err)
	}
	return nil
}

// hostLink returns our host end called name, nil when nothing is called so,
// and an error when something else is.
func hostLink(name string) (netlink.Link, error) {
	l, err := netlink.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking up interface: %w", err)
	}
	if retired(l) {
		return nil, Reap() // the name is wanted again
	}
	if !ours(l) {
		return nil, fmt.Errorf("interface %s (type %s, group %d) is not one of Fairlead's (veth, name %s*, group %d)",
			name, l.Type(), l.Attrs().Group, prefix, Group)
	}
	return l, nil
}

// openPod opens a pod's network namespace. The node's own is refused: a pod on
// the host's network is none of a CNI plugin's business.
func openPod(path string) (ns.NetNS, error) {
	pod, err := ns.GetNS(path)
	if err != nil {
		return nil, fmt.Errorf("opening the network namespace: %w", err)
	}
	var here, there unix.Stat_t
	if err := errors.Join(unix.Stat("/proc/thread-self/ns/net", &here), unix.Fstat(int(pod.Fd()), &there)); err != nil {
		pod.Close()
		return nil, fmt.Errorf("identifying the network namespace: %w", err)
	}
	if here.Dev == there.Dev && here.Ino == there.Ino {
		pod.Close()
		return nil, errors.New("this is the node's own network namespace, not a pod's")
	}
	return pod, nil
}

func (l PodLink) validate() error {
	if err := errors.Join(checkName(l.HostIf), checkName(l.IfName)); err != nil {
		return err
	}
	if !strings.HasPrefix(l.HostIf, prefix) {
		return fmt.Errorf("the name of the host's end does not begin with %s", prefix)
	}
	if len(l.Addrs) == 0 {
		return errors.New("no address is given")
	}
	minMTU := 68
	for _, a := range l.Addrs {
		if !a.IsValid() || a.Addr().Is4In6() {
			return fmt.Errorf("address %s is not an IPv4 or IPv6 address with a mask", a)
		}
		if a.Addr().Is6() {
			minMTU = 1280
		}
	}
	if l.MTU < minMTU || l.MTU > 65535 {
		return fmt.Errorf("MTU %d is not in %d..65535", l.MTU, minMTU)
	}
	return checkGateways(l.Addrs, l.Gateways)
}

func checkGateways(addrs []netip.Prefix, gateways []netip.Addr) error {
	count := map[bool]int{}
	for _, g := range gateways {
		family := false
		for _, a := range addrs {
			family = family || a.Addr().Is6() == g.Is6()
			if a.Addr() == g {
				return fmt.Errorf("gateway %s is the pod's own address", g) // the kernel accepts this for IPv4
			}
		}
		if !g.IsValid() || !family {
			return fmt.Errorf("the pod has no address of the family of gateway %s", g)
		}
		if count[g.Is6()]++; count[g.Is6()] > 1 {
			return fmt.Errorf("gateway %s is the second of its family", g)
		}
	}
	return nil
}
