package capture

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/datapath/internal/packetsocket"
)

// MaxSnapLen is the maximum number of bytes kept of a frame, as in tcpdump(8).
const MaxSnapLen = 262144

// queueBytes is how much the kernel queues for the process before it drops, and counts, packets.
const queueBytes = 8 << 20

// Frame is a captured frame.
type Frame struct {
	Time time.Time
	// Data is the frame with its VLAN tag, possibly truncated; Length is the length of the whole frame, in bytes.
	Data   []byte
	Length int
	// Outgoing: sent by the node. ToHost: received, and addressed to the MAC address of its interface.
	Outgoing, ToHost bool
	// Unsummed: a checksum is not in the frame yet, but left to the sending device, or never computed.
	Unsummed bool
	// Index is the interface's.
	Index int
}

// Socket captures from one interface or from all.
type Socket struct {
	file    *os.File
	raw     syscall.RawConn
	buffer  []byte
	control []byte
	// stopped is when Stop was called, in nanoseconds since 1970.
	stopped atomic.Int64
	lost    uint64
}

// Open starts capturing the first snapLen bytes of each frame that the filter selects, from an interface of the calling
// thread's network namespace. It needs CAP_NET_RAW.
func Open(ifName string, f Filter, snapLen int) (*Socket, error) {
	device, err := net.InterfaceByName(ifName)
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", ifName, err)
	}
	if len(device.HardwareAddr) != 6 {
		return nil, fmt.Errorf("interface %s is not an Ethernet interface", ifName)
	}
	return open(device, f, snapLen)
}

// OpenAll is Open for all interfaces: a frame that passes several is seen on each. On interfaces that are not Ethernet
// it may capture packets that the filter does not select.
func OpenAll(f Filter, snapLen int) (*Socket, error) {
	return open(&net.Interface{Name: "any"}, f, snapLen)
}

func open(device *net.Interface, f Filter, snapLen int) (*Socket, error) {
	filter, err := f.assemble(uint32(snapLen))
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", device.Name, err)
	}
	file, err := packetsocket.Open(device, filter)
	if err != nil {
		return nil, err
	}
	s := &Socket{file: file, buffer: make([]byte, snapLen), control: make([]byte, 256)}
	s.raw, err = file.SyscallConn()
	if err == nil {
		err = s.set(map[int]int{unix.PACKET_AUXDATA: unix.SOL_PACKET, unix.SO_TIMESTAMPNS: unix.SOL_SOCKET})
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("packet socket on %s: %w", device.Name, err)
	}
	return s, nil
}

func (f Filter) assemble(snapLen uint32) (out []unix.SockFilter, err error) {
	instructions, err := f.compile(snapLen)
	if err != nil {
		return nil, err
	}
	raw, err := bpf.Assemble(instructions)
	for _, i := range raw {
		out = append(out, unix.SockFilter{Code: i.Op, Jt: i.Jt, Jf: i.Jf, K: i.K})
	}
	return out, err
}

// set enables options, each with its level, and requests a longer queue; without it the default will do.
func (s *Socket) set(options map[int]int) (err error) {
	controlErr := s.raw.Control(func(fd uintptr) {
		for option, level := range options {
			err = errors.Join(err, unix.SetsockoptInt(int(fd), level, option, 1))
		}
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, queueBytes)
	})
	return errors.Join(controlErr, err)
}

// ErrGone is the error of an interface that was deleted.
var ErrGone = errors.New("the interface is gone")

// deletedWait is how long an interface that is down may take to be deleted: the kernel takes it down first.
const deletedWait = 2 * time.Second

// gone reports whether the interface was deleted: the kernel reports nothing more then (packet(7)).
func (s *Socket) gone() (is bool) {
	end := time.Now().Add(deletedWait)
	for ; !is && s.stopped.Load() == 0 && time.Now().Before(end); time.Sleep(deletedWait / 20) {
		_ = s.raw.Control(func(fd uintptr) { // fails when it is closed
			at, err := unix.Getsockname(int(fd))
			device, ok := at.(*unix.SockaddrLinklayer)
			is = err == nil && ok && device.Ifindex < 0
		})
	}
	return is
}

// Next waits for a frame. After Stop it returns those captured before, then io.EOF.
func (s *Socket) Next() (f Frame, err error) {
	for {
		var failed error
		receive := func(fd uintptr) bool {
			f, failed = s.receive(int(fd))
			return !errors.Is(failed, unix.EAGAIN)
		}
		err := s.raw.Read(receive)
		if errors.Is(err, os.ErrDeadlineExceeded) { // stopped
			err = s.raw.Control(func(fd uintptr) { receive(fd) })
			if err == nil && errors.Is(failed, unix.EAGAIN) {
				return f, io.EOF
			}
		}
		stopped := s.stopped.Load()
		switch {
		case err != nil:
			return f, err
		case errors.Is(failed, unix.ENETDOWN):
			if s.gone() {
				return f, ErrGone
			} // else it may be up again
		case failed != nil:
			return f, os.NewSyscallError("recvmsg", failed)
		case stopped != 0 && f.Time.UnixNano() > stopped:
			return f, io.EOF
		default:
			return f, nil
		}
	}
}

// receive reads one frame, or returns an error number.
func (s *Socket) receive(fd int) (Frame, error) {
	n, controlLen, _, from, err := unix.Recvmsg(fd, s.buffer, s.control, unix.MSG_TRUNC)
	if err != nil {
		return Frame{}, err
	}
	n = min(n, len(s.buffer))
	f := Frame{Length: n}
	if at, ok := from.(*unix.SockaddrLinklayer); ok {
		f.Outgoing, f.ToHost, f.Index = at.Pkttype == unix.PACKET_OUTGOING, at.Pkttype == unix.PACKET_HOST, at.Ifindex
	}
	var tag []byte
	messages, err := unix.ParseSocketControlMessage(s.control[:controlLen])
	if err != nil {
		return f, err
	}
	for _, m := range messages {
		switch {
		case m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SO_TIMESTAMPNS &&
			len(m.Data) >= int(unsafe.Sizeof(unix.Timespec{})):
			at := (*unix.Timespec)(unsafe.Pointer(&m.Data[0]))
			f.Time = time.Unix(at.Unix())
		case m.Header.Level == unix.SOL_PACKET && m.Header.Type == unix.PACKET_AUXDATA &&
			len(m.Data) >= int(unsafe.Sizeof(unix.TpacketAuxdata{})):
			aux := (*unix.TpacketAuxdata)(unsafe.Pointer(&m.Data[0]))
			f.Length, tag, f.Unsummed = int(aux.Len), tagOf(aux), aux.Status&unix.TP_STATUS_CSUMNOTREADY != 0
		}
	}
	if f.Time.IsZero() { // it came before the options were set
		f.Time = time.Now()
	}
	if n < typeAt {
		tag = nil
	}
	f.Data = slices.Concat(s.buffer[:min(n, typeAt)], tag, s.buffer[min(n, typeAt):n])
	f.Length = max(f.Length+len(tag), len(f.Data))
	return f, nil
}

// tagOf returns the VLAN tag that the kernel has stripped from the frame; nil if there was none.
func tagOf(aux *unix.TpacketAuxdata) []byte {
	if aux.Status&unix.TP_STATUS_VLAN_VALID == 0 {
		return nil
	}
	kind := uint16(etherVLAN)
	if aux.Status&unix.TP_STATUS_VLAN_TPID_VALID != 0 {
		kind = aux.Vlan_tpid
	}
	return []byte{byte(kind >> 8), byte(kind), byte(aux.Vlan_tci >> 8), byte(aux.Vlan_tci)}
}

// Stop ends the capture.
func (s *Socket) Stop() {
	now := time.Now()
	s.stopped.Store(now.UnixNano())
	_ = s.file.SetReadDeadline(now) // fails when it is closed, and then has ended as well
}

// Lost counts the packets that were dropped because they were not read in time.
func (s *Socket) Lost() uint64 {
	_ = s.raw.Control(func(fd uintptr) { // fails when it is closed
		if stats, err := unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
			s.lost += uint64(stats.Drops) // since the last query
		}
	})
	return s.lost
}

// Close releases the socket.
func (s *Socket) Close() error { return s.file.Close() }
