package bridged

import (
	"bytes"
	"encoding/binary"
	"net"
	"os"
	"sync"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// frame is a received frame without its VLAN tag, which the kernel removes before it delivers a frame to the socket.
type frame struct {
	vlan uint16
	data []byte
}

// wire is a raw socket on an interface: it sends frames unmodified, and keeps all received ones.
type wire struct {
	name string
	file *os.File
	mu   sync.Mutex
	in   []frame
}

// tap opens a wire that is read until the test ends. Frames that the place itself sends are not kept.
func tap(t *testing.T, p place, ifName string) *wire {
	t.Helper()
	w := &wire{name: p.name + " " + ifName}
	var fd int
	must(t, p.do(func() (err error) {
		ifc, err := net.InterfaceByName(ifName)
		if err != nil {
			return err
		}
		const protocol = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8 // network byte order
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		for _, option := range []int{unix.PACKET_IGNORE_OUTGOING, unix.PACKET_AUXDATA} {
			if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, option, 1); err != nil {
				return err
			}
		}
		promisc := unix.PacketMreq{Ifindex: int32(ifc.Index), Type: unix.PACKET_MR_PROMISC}
		if err := unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &promisc); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: ifc.Index})
	}))
	w.file = os.NewFile(uintptr(fd), w.name)
	go w.read()
	t.Cleanup(func() { w.file.Close() })
	return w
}

func (w *wire) read() {
	raw, err := w.file.SyscallConn()
	if err != nil {
		return
	}
	buf, oob := make([]byte, 1<<16), make([]byte, 256)
	for {
		var n, oobn int
		rerr := raw.Read(func(fd uintptr) bool {
			n, oobn, _, _, err = unix.Recvmsg(int(fd), buf, oob, 0)
			return err != unix.EAGAIN
		})
		if rerr != nil || err != nil {
			return
		}
		w.mu.Lock()
		w.in = append(w.in, frame{tagOf(oob[:oobn]), bytes.Clone(buf[:n])})
		w.mu.Unlock()
	}
}

// tagOf reads the VLAN from packet(7)'s PACKET_AUXDATA.
func tagOf(oob []byte) uint16 {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return 0
	}
	for _, m := range messages {
		if m.Header.Type == unix.PACKET_AUXDATA && len(m.Data) >= int(unsafe.Sizeof(unix.TpacketAuxdata{})) {
			status := binary.NativeEndian.Uint32(m.Data)
			if status&unix.TP_STATUS_VLAN_VALID != 0 {
				return binary.NativeEndian.Uint16(m.Data[unsafe.Offsetof(unix.TpacketAuxdata{}.Vlan_tci):]) & 0xfff
			}
		}
	}
	return 0
}

func (w *wire) send(t *testing.T, data []byte) {
	t.Helper()
	_, err := w.file.Write(data)
	must(t, err)
}

// find returns the frames so far that match.
func (w *wire) find(want func(frame) bool) (found []frame) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.in {
		if want(f) {
			found = append(found, f)
		}
	}
	return found
}

// holds matches frames that contain mark.
func holds(mark []byte) func(frame) bool {
	return func(f frame) bool { return bytes.Contains(f.data, mark) }
}

// tagged inserts a VLAN tag into a frame.
func tagged(vlan uint16, data []byte) []byte {
	tag := binary.BigEndian.AppendUint16([]byte{0x81, 0x00}, vlan)
	return bytes.Join([][]byte{data[:12], tag, data[12:]}, nil)
}
