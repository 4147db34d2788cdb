package route

import (
	"encoding/binary"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/test/nstest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// advertise sends a router advertisement (RFC 4861, 4.2) with a router
// lifetime of 1800 s to all nodes behind ifName.
func advertise(ifName string) error {
	ifi, err := net.InterfaceByName(ifName)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255); err != nil {
		return err
	}
	ra := make([]byte, 16)
	ra[0], ra[4] = 134, 64
	binary.BigEndian.PutUint16(ra[6:], 1800)
	to := &unix.SockaddrInet6{ZoneId: uint32(ifi.Index), Addr: [16]byte{0: 0xff, 1: 2, 15: 1}}
	return unix.Sendto(fd, ra, 0, to)
}

// lan is a node that has learned its IPv6 default route from a router.
func lan(t *testing.T) (node, router *nstest.NS) {
	node, router = nstest.New(t), nstest.New(t)
	for _, ns := range []*nstest.NS{node, router} {
		ns.Exec("sysctl", "-qw", "net.ipv6.conf.default.accept_dad=0", "net.ipv6.conf.default.accept_ra=1")
	}
	nstest.Veth(node, "eth0", router, "r0")
	learn(t, node, router)
	return node, router
}

func learn(t *testing.T, node, router *nstest.NS) {
	t.Helper()
	learnFrom(t, node, router, "r0")
}

func learnFrom(t *testing.T, node, router *nstest.NS, ifName string) {
	t.Helper()
	nstest.Wait(t, time.Minute, "the node to learn a default route from the router", func() bool {
		_ = router.Do(func() error { return advertise(ifName) }) // fails until the router has its link-local address
		return strings.Contains(node.IP("-6 route show default"), "proto ra")
	})
}

func TestRootForwardingKeepsTheDefaultRoute(t *testing.T) {
	node, router := lan(t)
	node.Exec("sysctl", "-qw", "net.ipv4.ip_forward=0")
	var changes []string
	node.Must(func() (err error) { changes, err = EnableForwarding(true, true); return err })
	for _, want := range []string{"IPv4 forwarding on", "eth0 accept_ra 2", "IPv6 forwarding on"} {
		if !slices.Contains(changes, want) {
			t.Errorf("EnableForwarding says %v, want also %q", changes, want)
		}
	}
	if got := node.IP("-6 route show default"); !strings.Contains(got, "proto ra") {
		t.Errorf("the node has lost its default route: %q", got)
	}
	node.IP("-6 route flush default")
	learn(t, node, router) // advertisements are still accepted
	for _, f := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		if got := node.Exec("cat", "/proc/sys/net/"+f); got != "1\n" {
			t.Errorf("%s is %q", f, got)
		}
	}
	node.Must(func() (err error) { changes, err = EnableForwarding(true, true); return err })
	if len(changes) != 0 {
		t.Errorf("a second call changed %v", changes)
	}
}

// The kernel's own behaviour: without it the test above proves nothing.
func TestRootForwardingAloneLosesTheDefaultRoute(t *testing.T) {
	node, _ := lan(t)
	node.Exec("sysctl", "-qw", "net.ipv6.conf.all.forwarding=1")
	if got := node.IP("-6 route show default"); strings.Contains(got, "proto ra") {
		t.Errorf("this kernel keeps the default route by itself: %q", got)
	}
}

// Interfaces that don't accept advertisements must not start to.
func TestRootForwardingTouchesNoOtherInterface(t *testing.T) {
	node, peer := nstest.New(t), nstest.New(t)
	nstest.Veth(node, "off", peer, "p0")
	nstest.Veth(node, "fwd", peer, "p1")
	node.Exec("sysctl", "-qw", "net.ipv6.conf.off.accept_ra=0", "net.ipv6.conf.fwd.accept_ra=1", "net.ipv6.conf.fwd.forwarding=1")
	node.Must(func() error { _, err := EnableForwarding(false, true); return err })
	for name, want := range map[string]string{"off": "0\n", "fwd": "1\n"} {
		if got := node.Exec("cat", "/proc/sys/net/ipv6/conf/"+name+"/accept_ra"); got != want {
			t.Errorf("accept_ra of %s is %q, want %q", name, got, want)
		}
	}
	if got := node.Exec("cat", "/proc/sys/net/ipv4/ip_forward"); got != "0\n" {
		t.Errorf("IPv4 forwarding is %q though only IPv6 was asked for", got)
	}
}

const noVLANs = "only the kernel in which that is tested is sure to have VLAN interfaces"

// later adds a NIC to the node, eth0.10, and an interface that is not a NIC, and calls EnableForwarding again.
func later(t *testing.T, node, router *nstest.NS) (changes []string) {
	t.Helper()
	node.Must(func() error { _, err := EnableForwarding(false, true); return err })
	node.IP("link add eth0.10 link eth0 up type vlan id 10")
	router.IP("link add r0.10 link r0 up type vlan id 10")
	nstest.Veth(node, "pod", router, "p0")
	node.Must(func() (err error) { changes, err = EnableForwarding(false, true); return err })
	return changes
}

// A NIC that is added later accepts advertisements, too, whatever its name; a pod's interface does not.
func TestRootForwardingKeepsALaterNIC(t *testing.T) {
	ovstest.KernelOnly(t, noVLANs)
	node, router := lan(t)
	if changes := later(t, node, router); !slices.Equal(changes, []string{"eth0.10 accept_ra 2"}) {
		t.Errorf("changed %v", changes)
	}
	node.IP("link set eth0.10 down")
	node.IP("link set eth0.10 name wan")
	node.IP("link set wan up")
	node.IP("-6 route flush default")
	learnFrom(t, node, router, "r0.10")
	if got := node.IP("-6 route show default"); !strings.Contains(got, "dev wan") {
		t.Errorf("default route: %q", got)
	}
	if got := node.Exec("cat", "/proc/sys/net/ipv6/conf/pod/accept_ra"); got != "1\n" {
		t.Errorf("accept_ra of a pod's interface is %q", got)
	}
}

// On a node that forwarded IPv6 before, a NIC that is added later keeps the kernel's defaults.
func TestRootForwardingOfARouter(t *testing.T) {
	ovstest.KernelOnly(t, noVLANs)
	node, router := lan(t)
	node.Exec("sysctl", "-qw", "net.ipv6.conf.all.forwarding=1")
	if changes := later(t, node, router); len(changes) > 0 {
		t.Errorf("changed %v", changes)
	}
}
