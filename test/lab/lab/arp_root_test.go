package lab

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/test/lab/host"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
)

// arpReplies sends an ARP request for the target from dev on the host, in the network namespace netns if that is not
// empty, and returns the MACs of all replies. It waits for want replies as long as a busy machine may need, and then a
// moment for more.
func arpReplies(t *testing.T, h host.Host, netns, dev string, source, target netip.Addr, want int) []string {
	t.Helper()
	var fd int
	var ifc *net.Interface
	open := func() (err error) {
		if ifc, err = net.InterfaceByName(dev); err != nil {
			return err
		}
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ARP), Ifindex: ifc.Index})
	}
	run := h.Do
	if netns != "" {
		run = func(f func() error) error { return h.DoNet(netns, f) }
	}
	err := run(open)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Send(fd, arpRequest(ifc.HardwareAddr, source, target), 0); err != nil {
		t.Fatal(err)
	}
	var macs []string
	const more = 300 * time.Millisecond
	deadline := time.Now().Add(labtest.Limit(3 * time.Second))
	if want == 0 {
		deadline = time.Now().Add(3 * time.Second)
	}
	buf := make([]byte, 2048)
	for time.Now().Before(deadline) {
		tv := unix.NsecToTimeval(int64(50 * time.Millisecond))
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
			t.Fatal(err)
		}
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err != nil || n < 42 {
			continue
		}
		if binary.BigEndian.Uint16(buf[20:]) == 2 && netip.AddrFrom4([4]byte(buf[28:32])) == target {
			if macs = append(macs, net.HardwareAddr(buf[22:28]).String()); len(macs) == want {
				deadline = time.Now().Add(more)
			}
		}
	}
	return macs
}

func arpRequest(mac net.HardwareAddr, source, target netip.Addr) []byte {
	frame := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, mac...)
	frame = append(frame, 0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 1)
	frame = append(frame, mac...)
	frame = append(frame, source.AsSlice()...)
	frame = append(frame, 0, 0, 0, 0, 0, 0)
	return append(frame, target.AsSlice()...)
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }
