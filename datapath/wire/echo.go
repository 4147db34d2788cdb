package wire

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// Lengths of headers, in bytes, and types of messages (RFC 792, RFC 4443).
const (
	ipv4Header, ipv6Header, echoHeader = 20, 40, 8

	echo4, reply4 = 8, 0
	echo6, reply6 = 128, 129
)

// Echo sends one ping whose IP packet has size bytes and may not be cut into
// fragments, and returns nil if it is answered within wait. It needs root.
func Echo(ctx context.Context, to netip.Addr, size int, wait time.Duration) error {
	fd, err := echoSocket(to)
	if err != nil {
		return fmt.Errorf("opening a socket for pings: %w", err)
	}
	defer unix.Close(fd)
	id := uint16(rand.Uint32())
	if err := unix.Sendto(fd, echoMessage(to, size, id), 0, sockaddr(to)); err != nil {
		return fmt.Errorf("sending a ping of %d bytes to %s: %w", size, to, err)
	}
	deadline := time.Now().Add(wait)
	buf := make([]byte, 1<<16)
	for left := wait; left > 0 && ctx.Err() == nil; left = time.Until(deadline) {
		timeout := unix.NsecToTimeval(max(left, time.Millisecond).Nanoseconds())
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
			return err
		}
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("waiting for the answer of %s: %w", to, err)
		}
		if err == nil && isReply(buf[:n], to, id) {
			return nil
		}
	}
	return fmt.Errorf("%s does not answer a ping of %d bytes", to, size)
}

// echoSocket is a raw socket that is connected to one address, and that asks the
// path anew each time.
func echoSocket(to netip.Addr) (fd int, err error) {
	family, proto := unix.AF_INET, unix.IPPROTO_ICMP
	level, option, value := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE
	if to.Is6() {
		family, proto = unix.AF_INET6, unix.IPPROTO_ICMPV6
		level, option, value = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE
	}
	if fd, err = unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, proto); err != nil {
		return -1, err
	}
	if err = unix.SetsockoptInt(fd, level, option, value); err == nil {
		err = unix.Connect(fd, sockaddr(to))
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func sockaddr(a netip.Addr) unix.Sockaddr {
	if a.Is6() {
		return &unix.SockaddrInet6{Addr: a.As16()}
	}
	return &unix.SockaddrInet4{Addr: a.As4()}
}

// echoMessage is the ICMP part. The kernel fills in the checksum of ICMPv6.
func echoMessage(to netip.Addr, size int, id uint16) []byte {
	header, kind := ipv4Header, byte(echo4)
	if to.Is6() {
		header, kind = ipv6Header, echo6
	}
	m := make([]byte, max(size-header, echoHeader))
	m[0] = kind
	binary.BigEndian.PutUint16(m[4:], id)
	binary.BigEndian.PutUint16(m[6:], 1)
	if to.Is4() {
		binary.BigEndian.PutUint16(m[2:], internetChecksum(m))
	}
	return m
}

// isReply tells whether a packet answers the ping of that number. One of IPv4 comes with its IP header.
func isReply(packet []byte, to netip.Addr, id uint16) bool {
	kind := byte(reply6)
	if to.Is4() {
		kind = reply4
		if len(packet) < ipv4Header || len(packet) < int(packet[0]&0xf)*4 {
			return false
		}
		packet = packet[int(packet[0]&0xf)*4:]
	}
	return len(packet) >= echoHeader && packet[0] == kind && binary.BigEndian.Uint16(packet[4:]) == id
}
