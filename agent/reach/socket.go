package reach

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	pure "github.com/fairlead-cni/fairlead/diagnose/reach"
)

// heard is a packet that came.
type heard struct {
	from   netip.Addr
	packet pure.Packet
	at     time.Time
}

// listen receives packets at addr until the connection is closed. What is no packet is dropped. The calling thread is
// in the end's namespace.
func listen(addr netip.Addr, to chan<- heard) (*net.UDPConn, error) {
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, pure.Port)))
	if err != nil {
		return nil, fmt.Errorf("listening for other nodes: %w", err)
	}
	go func() {
		buf := make([]byte, 1<<16)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				time.Sleep(time.Second) // it goes with its interface, if for good
				continue
			}
			if packet, err := pure.Parse(buf[:n]); err == nil {
				select {
				case to <- heard{from.Addr().Unmap(), packet, time.Now()}:
				default: // more than this end is sent in earnest
				}
			}
		}
	}()
	return conn, nil
}

// socket sends to one end.
type socket interface {
	Write(packet []byte) (int, error)
	// Refused reports whether the kernel of the other end has refused what was sent.
	Refused() bool
	Close() error
}

// port is a socket of the kernel.
type port struct{ *net.UDPConn }

// dial opens a socket to an end, from a port that the kernel chooses. Its packets are not fragmented, whatever the
// kernel has learnt of the path. The calling thread is in the end's namespace.
func dial(from, to netip.Addr) (socket, error) {
	conn, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)),
		net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, pure.Port)))
	if err != nil {
		return nil, err
	}
	level, option, value := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE
	if to.Is6() {
		level, option, value = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE
	}
	if err := control(conn, func(fd int) error { return unix.SetsockoptInt(fd, level, option, value) }); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return port{conn}, nil
}

// Refused implements socket.
func (p port) Refused() bool {
	code := 0
	err := control(p.UDPConn, func(fd int) (err error) {
		code, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		return err
	})
	return err == nil && syscall.Errno(code) == unix.ECONNREFUSED
}

func control(conn *net.UDPConn, f func(fd int) error) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var did error
	if err := raw.Control(func(fd uintptr) { did = f(int(fd)) }); err != nil {
		return err
	}
	return did
}
