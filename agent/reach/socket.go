package reach

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	pure "github.com/fairlead-cni/fairlead/diagnose/reach"
)

// heard is a received packet.
type heard struct {
	from   netip.Addr
	packet pure.Packet
	at     time.Time
}

// maxHeard is how many packets are read at a time: more than other ends send in practice.
const maxHeard = 256

// inbox is a socket that receives at an address of this end. Nothing waits for it, and it is not registered with Go's
// poller: the agent need not wake up for each packet.
type inbox struct {
	fd  int
	buf []byte
}

// listen begins to receive packets at addr. The calling thread is in the end's namespace.
func listen(addr netip.Addr) (inbox, error) {
	fd, err := open(netip.AddrPortFrom(addr, pure.Port), unix.SOCK_DGRAM)
	if err != nil {
		return inbox{}, fmt.Errorf("listening for other nodes at %s: %w", addr, err)
	}
	return inbox{fd, make([]byte, 1<<16)}, nil
}

// read returns the packets received since the last call. Invalid ones are dropped.
func (i inbox) read(now time.Time) (out []heard) {
	for range maxHeard {
		n, from, err := unix.Recvfrom(i.fd, i.buf, unix.MSG_DONTWAIT)
		if err != nil {
			return out // there are no more, or the interface is gone; the next end gets a new socket
		}
		if packet, err := pure.Parse(i.buf[:n]); err == nil {
			out = append(out, heard{addrOf(from), packet, now})
		}
	}
	return out
}

func (i inbox) Close() error { return unix.Close(i.fd) }

// socket sends to one end.
type socket interface {
	Write(packet []byte) (int, error)
	// Refused reports whether the other end's kernel has refused a packet.
	Refused() bool
	Close() error
}

// port is a kernel socket.
type port struct {
	fd int
	to netip.Addr
}

// dial opens a socket to an end, from the given port, or, if that is 0 or in use, from one that the kernel chooses. Its
// packets are not fragmented, whatever the kernel has learnt about the path. The calling thread is in the end's
// namespace.
func dial(from netip.AddrPort, to netip.Addr) (socket, error) {
	fd, err := open(from, unix.SOCK_DGRAM)
	if errors.Is(err, unix.EADDRINUSE) {
		fd, err = open(netip.AddrPortFrom(from.Addr(), 0), unix.SOCK_DGRAM)
	}
	if err != nil {
		return nil, err
	}
	level, discover, errs := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_RECVERR
	if to.Is6() {
		level, discover, errs = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_RECVERR
	}
	if err := cmp.Or(
		unix.SetsockoptInt(fd, level, discover, unix.IP_PMTUDISC_PROBE), // IPV6_PMTUDISC_PROBE is the same
		unix.SetsockoptInt(fd, level, errs, 1),
		unix.Connect(fd, sockaddr(netip.AddrPortFrom(to, pure.Port))),
	); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return port{fd, to}, nil
}

// open opens a socket of UDP (SOCK_DGRAM) or TCP (SOCK_STREAM) that is bound to a.
func open(a netip.AddrPort, kind int) (int, error) {
	family := unix.AF_INET
	if a.Addr().Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	if kind == unix.SOCK_STREAM { // connections of an earlier agent may still exist
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	if err = cmp.Or(err, unix.Bind(fd, sockaddr(a))); err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}

func addrOf(a unix.Sockaddr) netip.Addr {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(a.Addr)
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(a.Addr).Unmap()
	}
	return netip.Addr{}
}

func (p port) Write(packet []byte) (int, error) { return unix.Write(p.fd, packet) }

func (p port) Close() error { return unix.Close(p.fd) }

// Refused implements socket. ECONNREFUSED alone does not say who refuses: a firewall on the path may, too.
func (p port) Refused() bool {
	refused, oob := false, make([]byte, 512)
	for {
		_, n, _, _, err := unix.Recvmsg(p.fd, nil, oob, unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
		if err != nil { // none is left
			return refused && errors.Is(err, unix.EAGAIN)
		}
		refused = refused || refuser(oob[:n]) == p.to
	}
}

// refuser is the address that has refused a packet, from the control messages of a socket's error: ip(7), IP_RECVERR.
// It is invalid for other errors.
func refuser(oob []byte) netip.Addr {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return netip.Addr{}
	}
	// A sock_extended_err, followed by the socket address of the sender of the ICMP message.
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
