package reach

import (
	"encoding/binary"
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
type port struct {
	*net.UDPConn
	to netip.Addr
}

// dial opens a socket to an end, from a port that the kernel chooses. Its packets are not fragmented, whatever the
// kernel has learnt of the path. The calling thread is in the end's namespace.
func dial(from, to netip.Addr) (socket, error) {
	conn, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)),
		net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, pure.Port)))
	if err != nil {
		return nil, err
	}
	level, options := unix.IPPROTO_IP, map[int]int{unix.IP_MTU_DISCOVER: unix.IP_PMTUDISC_PROBE, unix.IP_RECVERR: 1}
	if to.Is6() {
		level = unix.IPPROTO_IPV6
		options = map[int]int{unix.IPV6_MTU_DISCOVER: unix.IPV6_PMTUDISC_PROBE, unix.IPV6_RECVERR: 1}
	}
	for option, value := range options {
		if err := control(conn, func(fd int) error { return unix.SetsockoptInt(fd, level, option, value) }); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
	}
	return port{conn, to}, nil
}

// Refused implements socket. ECONNREFUSED alone does not say who refuses: a firewall on the way may, too.
func (p port) Refused() bool {
	refused, oob := false, make([]byte, 512)
	err := control(p.UDPConn, func(fd int) error {
		for {
			_, n, _, _, err := unix.Recvmsg(fd, nil, oob, unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
			if err != nil {
				return err // none is left
			}
			refused = refused || refuser(oob[:n]) == p.to
		}
	})
	return refused && errors.Is(err, unix.EAGAIN)
}

// refuser is who has refused a packet, from the control messages of a socket's error: ip(7), IP_RECVERR. It is invalid
// for other errors.
func refuser(oob []byte) netip.Addr {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return netip.Addr{}
	}
	// A sock_extended_err, and after it the socket address of whose ICMP message it was.
	const length = 16
	const addr4, addr6 = length + 4, length + 8
	for _, m := range messages {
		ofIP := m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_RECVERR ||
			m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_RECVERR
		if !ofIP || len(m.Data) < addr6 || syscall.Errno(binary.NativeEndian.Uint32(m.Data)) != unix.ECONNREFUSED {
			continue
		}
		switch family := binary.NativeEndian.Uint16(m.Data[length:]); {
		case family == unix.AF_INET:
			return netip.AddrFrom4([4]byte(m.Data[addr4:]))
		case family == unix.AF_INET6 && len(m.Data) >= addr6+16:
			return netip.AddrFrom16([16]byte(m.Data[addr6:])).Unmap()
		}
	}
	return netip.Addr{}
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
