package uplink

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/test/nstest"
)

// router sends router advertisements (RFC 4861, 4.2) from the outside until the test ends: it is the default router,
// and hosts create addresses in fd00:5::/64 that are valid for valid seconds.
func (f *fixture) router(valid *atomic.Uint32) {
	f.t.Helper()
	var fd int
	f.outside.Must(func() (err error) {
		if fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6); err != nil {
			return err
		}
		link, err := net.InterfaceByName("far0")
		if err != nil {
			return err
		}
		for option, value := range map[int]int{unix.IPV6_MULTICAST_HOPS: 255, unix.IPV6_MULTICAST_IF: link.Index} {
			if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, option, value); err != nil {
				return err
			}
		}
		return unix.Bind(fd, &unix.SockaddrInet6{Addr: [16]byte(net.ParseIP("fe80::1")), ZoneId: uint32(link.Index)})
	})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	f.t.Cleanup(func() { stop(); <-ended; unix.Close(fd) })
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			_ = unix.Sendto(fd, advertisement(valid.Load()), 0, &unix.SockaddrInet6{Addr: [16]byte(net.ParseIP("ff02::1"))})
			time.Sleep(200 * time.Millisecond)
		}
	}()
}

func advertisement(valid uint32) []byte {
	ra := []byte{134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0} // router lifetime 1800 s
	ra = append(ra, 3, 4, 64, 0xc0)                                       // prefix information: on link, autonomous
	ra = binary.BigEndian.AppendUint32(ra, valid)
	ra = binary.BigEndian.AppendUint32(ra, valid/2)
	ra = append(ra, 0, 0, 0, 0)
	return append(ra, net.ParseIP("fd00:5::")...)
}

// An address from router advertisements moves, is renewed on br-uplink, and moves back.
func TestRootRouterAdvertisements(t *testing.T) {
	f := setup(t, simple)
	f.outside.IP("-6 addr add fd00:5::1/64 dev far0 nodad")
	valid := &atomic.Uint32{}
	valid.Store(9000)
	f.router(valid)
	const own = "fd00:5::ff:fe00:11/64"
	has := func(dev string, seconds uint32) func() bool {
		return func() bool {
			out := f.node.IP("-6 addr show dev " + dev)
			return strings.Contains(out, own) && !strings.Contains(out, "tentative") &&
				strings.Contains(strings.ReplaceAll(out, fmt.Sprintf("valid_lft %dsec", seconds-1),
					fmt.Sprintf("valid_lft %dsec", seconds)), fmt.Sprintf("valid_lft %dsec", seconds))
		}
	}
	nstest.Wait(t, time.Minute, "an address of the router's prefix", has(nic, 9000))
	before := f.state()
	if err := f.attach(); err != nil {
		t.Fatal(err, f.describe())
	}
	f.node.Exec("ping", "-6", "-c1", "-W15", "-I", "fd00:5::ff:fe00:11", "fd00:5::1")
	valid.Store(20000)
	nstest.Wait(t, time.Minute, "the kernel to renew the address on br-uplink", has(BridgeName, 20000))
	u := f.open()
	f.node.Must(func() error { _, err := u.Repair(context.Background()); return err })
	routes := f.node.IP("-6 route show default")
	if n := strings.Count(routes, "proto ra"); n != 1 || !strings.Contains(routes, "dev br-uplink proto ra metric 1024") {
		t.Errorf("one default route of the router's is wanted:\n%s", routes)
	}
	valid.Store(9000)
	if err := f.restore(); err != nil {
		t.Fatal(err, f.describe())
	}
	f.reached()
	nstest.Wait(t, time.Minute, "the kernel to renew the address on the NIC", has(nic, 9000))
	f.sameSoon(before, "restored")
}
