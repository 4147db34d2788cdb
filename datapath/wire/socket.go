package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// socket is a packet socket on one interface.
type socket struct {
	file  *os.File
	index int
}

// open opens a socket on an interface of the calling thread's network
// namespace, in which it stays. One that listens sees what claim understands.
func open(device *net.Interface, listen bool) (*socket, error) {
	// Of protocol 0 it hears nothing until it is bound: no frame gets past the filter.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("opening a packet socket: %w", err)
	}
	s := &socket{file: os.NewFile(uintptr(fd), device.Name), index: device.Index}
	if listen {
		err = s.listen(fd)
	}
	if err != nil {
		s.file.Close()
		return nil, fmt.Errorf("listening on %s: %w", device.Name, err)
	}
	return s, nil
}

func (s *socket) listen(fd int) error {
	filter := claims()
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program); err != nil {
		return fmt.Errorf("filter: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1); err != nil {
		return fmt.Errorf("auxiliary data: %w", err)
	}
	// Only a socket for all protocols sees a frame before the bridge takes it.
	return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: bigEndian(unix.ETH_P_ALL), Ifindex: s.index})
}

// bigEndian is v as the kernel reads a field in network byte order.
func bigEndian(v uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], v)
	return binary.NativeEndian.Uint16(b[:])
}

// claims is a filter (Linux Documentation/networking/filter.rst) for received
// ARP and neighbour advertisements. The kernel has taken the VLAN tag out of the frame.
func claims() []unix.SockFilter {
	const (
		loadByte = unix.BPF_LD | unix.BPF_B | unix.BPF_ABS
		loadHalf = unix.BPF_LD | unix.BPF_H | unix.BPF_ABS
		equal    = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		ret      = unix.BPF_RET | unix.BPF_K
		pktType  = 1<<32 - 0x1000 + 4 // SKF_AD_OFF + SKF_AD_PKTTYPE
	)
	return []unix.SockFilter{
		{Code: loadByte, K: pktType},
		{Code: equal, K: unix.PACKET_OUTGOING, Jt: 8},
		{Code: loadHalf, K: 12},
		{Code: equal, K: etherARP, Jt: 5},
		{Code: equal, K: etherIPv6, Jf: 5},
		{Code: loadByte, K: etherLen + 6},
		{Code: equal, K: icmpv6, Jf: 3},
		{Code: loadByte, K: etherLen + ipv6Len},
		{Code: equal, K: neighbourNA, Jf: 1},
		{Code: ret, K: 256},
		{Code: ret, K: 0},
	}
}

// send sends a whole Ethernet frame.
func (s *socket) send(frame []byte) error {
	return s.do(s.writer, func(fd int) error {
		return unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: s.index, Halen: 6})
	})
}

// receive returns the next frame, without its tag, and its VLAN; 0 if it has
// none. It ends with os.ErrDeadlineExceeded at the file's deadline.
func (s *socket) receive() (frame []byte, vlan uint16, err error) {
	buf, oob := make([]byte, 256), make([]byte, 128)
	err = s.do(s.reader, func(fd int) error {
		n, oobn, _, _, err := unix.Recvmsg(fd, buf, oob, 0)
		if err == nil {
			frame = buf[:n]
			vlan, err = vlanOf(oob[:oobn])
		}
		return err
	})
	return frame, vlan, err
}

func (s *socket) reader(f func(uintptr) bool) error {
	c, err := s.file.SyscallConn()
	if err != nil {
		return err
	}
	return c.Read(f)
}

func (s *socket) writer(f func(uintptr) bool) error {
	c, err := s.file.SyscallConn()
	if err != nil {
		return err
	}
	return c.Write(f)
}

// do makes a system call, again and again as long as it would block.
func (s *socket) do(wait func(func(uintptr) bool) error, call func(fd int) error) error {
	var err error
	if werr := wait(func(fd uintptr) bool {
		err = call(int(fd))
		return !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR)
	}); werr != nil {
		return werr
	}
	return err
}

// vlanOf reads struct tpacket_auxdata.
func vlanOf(oob []byte) (uint16, error) {
	const sizeofAuxdata, offsetTCI = 20, 16
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return 0, fmt.Errorf("auxiliary data: %w", err)
	}
	for _, m := range messages {
		if m.Header.Level != unix.SOL_PACKET || m.Header.Type != unix.PACKET_AUXDATA || len(m.Data) < sizeofAuxdata {
			continue
		}
		if binary.NativeEndian.Uint32(m.Data)&unix.TP_STATUS_VLAN_VALID != 0 {
			return binary.NativeEndian.Uint16(m.Data[offsetTCI:]) & 0xfff, nil
		}
	}
	return 0, nil
}
