package wire

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Lengths of headers, in bytes, and types of messages (RFC 792, RFC 4443).
const (
	ipv4Header, ipv6Header, echoHeader = 20, 40, 8

	echo4, reply4 = 8, 0
	echo6, reply6 = 128, 129
)

// tries is how often a ping is sent before its address counts as silent: one packet may be lost.
const tries = 2

// Echo pings an address with IP packets of size bytes that must not be fragmented, and returns nil as soon as one is
// answered. It waits that long for each. It needs root.
func Echo(ctx context.Context, to netip.Addr, size int, wait time.Duration) error {
	conn, err := dialEcho(ctx, to)
	if err != nil {
		return fmt.Errorf("opening a socket for pings: %w", err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	id := uint16(rand.Uint32())
	for range tries {
		if err = ping(conn, to, size, id, wait); err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return silent(to, size)
		}
	}
	return err
}

func silent(to netip.Addr, size int) error {
	return fmt.Errorf("%s does not answer a ping of %d bytes", to, size)
}

// ping sends one packet, and waits for its answer.
func ping(conn net.Conn, to netip.Addr, size int, id uint16, wait time.Duration) error {
	if _, err := conn.Write(echoMessage(to, size, id)); err != nil {
		return fmt.Errorf("sending a ping of %d bytes to %s: %w", size, to, err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return err
	}
	for buf := make([]byte, 1<<16); ; {
		n, err := conn.Read(buf)
		switch {
		case err == nil && isReply(buf[:n], to, id):
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			return silent(to, size)
		case err != nil:
			return fmt.Errorf("waiting for the answer of %s: %w", to, err)
		}
	}
}

// dialEcho opens a raw socket connected to one address, which never fragments and ignores the cached path MTU.
func dialEcho(ctx context.Context, to netip.Addr) (net.Conn, error) {
	network, level, option, value := "ip4:icmp", unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE
	if to.Is6() {
		network, level, option, value = "ip6:ipv6-icmp", unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE
	}
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		var refused error
		err := c.Control(func(fd uintptr) { refused = unix.SetsockoptInt(int(fd), level, option, value) })
		return errors.Join(err, refused)
	}}
	return d.DialContext(ctx, network, to.String())
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

// isReply reports whether a packet answers the ping with that ID. An IPv4 packet includes its IP header.
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
