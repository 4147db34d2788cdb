package reach

import (
	"encoding/binary"
	"net/netip"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A kernel without an agent refuses packets, with its own address as source.
func TestRefused(t *testing.T) {
	for _, a := range []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()} {
		s, err := dial(netip.AddrPortFrom(a, 0), a)
		if err != nil {
			t.Log(a, err) // IPv6 may be disabled
			continue
		}
		defer s.Close()
		if s.Refused() {
			t.Errorf("%s: nothing was sent", a)
		}
		if _, err := s.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		end := time.Now().Add(time.Minute)
		for !s.Refused() {
			if time.Now().After(end) {
				t.Fatalf("%s: no agent listens, and it is not refused", a)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if s.Refused() {
			t.Errorf("%s: refused twice", a)
		}
	}
}

// What counts is the sender of an ICMP error, not that there was one.
func TestRefuser(t *testing.T) {
	message := func(errno syscall.Errno, offender netip.Addr) []byte {
		b := make([]byte, unix.CmsgSpace(44))
		h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
		h.Level, h.Type = unix.IPPROTO_IP, unix.IP_RECVERR
		h.SetLen(unix.CmsgLen(44))
		data := b[unix.CmsgLen(0):]
		binary.NativeEndian.PutUint32(data, uint32(errno))
		if offender.Is4() {
			binary.NativeEndian.PutUint16(data[16:], unix.AF_INET)
			copy(data[20:], offender.AsSlice())
		} else {
			binary.NativeEndian.PutUint16(data[16:], unix.AF_INET6)
			copy(data[24:], offender.AsSlice())
		}
		return b
	}
	for _, a := range []string{"10.77.1.254", "192.168.77.1", "fd77::1"} {
		addr := netip.MustParseAddr(a)
		if got := refuser(message(unix.ECONNREFUSED, addr)); got != addr {
			t.Errorf("%s refuses, taken for %s", addr, got)
		}
		if got := refuser(message(unix.EHOSTUNREACH, addr)); got.IsValid() {
			t.Errorf("a host that is not reached is taken for a refusal of %s", got)
		}
	}
	if refuser(nil).IsValid() || refuser([]byte("not a message")).IsValid() {
		t.Error("what is no message refuses")
	}
}
