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
	// Gateways get a default route each; at most one per family, and only of families that the pod has an address of. A
	// gateway that no address's mask covers gets its own route.
	Gateways []netip.Addr
	// TxOff has the pod compute checksums itself. The userspace datapath
	// needs it: it forwards frames unchanged, and the receiver drops TCP without a checksum.
	TxOff bool
}

// Veth is a veth pair that Create has created. Configure must be called, once.
type Veth struct {
	PodLink
	pod     ns.NetNS
	netlink *netlink.Handle // of the pod's namespace
	ready   bool            // it existed, as wanted
}

// ErrTaken is wrapped in Create's error if the pod already has an interface of that name.
var ErrTaken = errors.New("the pod already has an interface")

// Create creates the veth with both ends up: the host end can become a port, the pod's end has no address. Any change
// that ovs-vswitchd notices on an interface after it has made it a port makes it remove what others set up there, as
// the bandwidth plugin does. Create changes nothing when everything is as wanted, and recreates a veth of Fairlead's
// that differs, as after a crash. When it fails neither end remains. Run one at a time: the kernel does too, and
// writing an IPv6 sysctl meanwhile busy-waits for the lock.
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

// Configure disables offload on the pod's end, and sets its addresses and routes: what already runs in the pod must not
// send before. When it fails both ends remain: ovs-vswitchd may be using the host end.
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
	err = disableHostStack(v.HostIf)
	if err == nil {
		err = v.pod.Do(func(ns.NetNS) error { return v.podUp() })
	}
	if err != nil {
		err = errors.Join(err, Detach(v.HostIf))
	}
	return err
}

// create creates both ends. If the name is taken in the pod, it may be by a retired interface.
func (l PodLink) create(pod ns.NetNS) error {
	err := l.add(pod)
	if errors.Is(err, unix.EEXIST) {
		if err := Reap(); err != nil {
			return err
		}
		err = l.add(pod)
	}
	if errors.Is(err, unix.EEXIST) {
		// So the pod's name is taken: the host end's was free a moment ago.
		return fmt.Errorf("%w %s, which Fairlead did not create: remove it, or use another name in the CNI configuration",
			ErrTaken, l.IfName)
	}
	if err != nil {
		return fmt.Errorf("creating the veth: %w", err)
	}
	return nil
}

// add creates both ends in one request: at no instant does an end have a wrong name, or lack our mark, or is it in the
// wrong namespace. The host end is promiscuous from the start: otherwise ovs-vswitchd makes it so, is notified of that
// as of any interface change, and reads all its ports once more.
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

// disableHostStack keeps the node's own stack off the host end. On the userspace datapath the kernel also sees every
// frame of a port and would answer the pod's ARP requests for any address of the node; with IPv6 it would join groups
// and solicit routers in the pod's network.
func disableHostStack(hostIf string) error {
	if err := kernel.WriteSysctl("8", "ipv4", "conf", hostIf, "arp_ignore"); err != nil {
		return err
	}
	if !kernel.HasIPv6On(hostIf) {
		return nil
	}
	return kernel.WriteSysctl("1", "ipv6", "conf", hostIf, "disable_ipv6")
}

// Detach removes a veth by its host end, and the pod's end with it. A missing one counts as removed; one that is not
// Fairlead's is refused.
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
	if err != nil && !errors.Is(err, unix.ENODEV) { // deleted with the pod's namespace
		return fmt.Errorf("deleting the veth: %w", err)
	}
	return nil
}

// hostLink returns our host end called name, nil if there is no such interface, and an error if it is not ours.
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

// openPod opens a pod's network namespace. The node's own is refused: a CNI plugin does not handle hostNetwork pods.
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
		return fmt.Errorf("the host end's name does not begin with %s", prefix)
	}
	if len(l.Addrs) == 0 {
		return errors.New("no address given")
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
