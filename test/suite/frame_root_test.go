package suite

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/api"
)

// wire is a raw socket on an interface: it sends frames unmodified, and keeps all received ones.
type wire struct {
	name string
	file *os.File
	mu   sync.Mutex
	in   [][]byte
}

// tap opens a wire that is read until the test ends.
func tap(t *testing.T, p place, ifName string) *wire {
	t.Helper()
	index := p.link(t, ifName).Index
	w := &wire{name: p.name + " " + ifName}
	var fd int
	must(t, 0, p.do(func() (err error) {
		const protocol = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8 // network byte order
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: index})
	}))
	w.file = os.NewFile(uintptr(fd), w.name)
	go w.read()
	t.Cleanup(func() { w.file.Close() })
	return w
}

func (w *wire) read() {
	buf := make([]byte, 1<<16)
	for {
		n, err := w.file.Read(buf)
		if err != nil {
			return
		}
		w.mu.Lock()
		w.in = append(w.in, bytes.Clone(buf[:n]))
		w.mu.Unlock()
	}
}

func (w *wire) send(t *testing.T, frame []byte) {
	t.Helper()
	_, err := w.file.Write(frame)
	must(t, 0, err)
}

// find returns the first frame so far that contains mark, nil if there is none.
func (w *wire) find(mark []byte) []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.in {
		if bytes.Contains(f, mark) {
			return f
		}
	}
	return nil
}

// expect waits for a frame that contains mark.
func (w *wire) expect(t *testing.T, what string, mark []byte) []byte {
	t.Helper()
	wait(t, 5*time.Second, func() string {
		if w.find(mark) == nil {
			return what + " has not come to " + w.name
		}
		return ""
	})
	return w.find(mark)
}

// ttlOf is the TTL or hop limit of a frame.
func ttlOf(frame []byte) byte {
	if frame[12] == 0x08 {
		return frame[14+8]
	}
	return frame[14+7]
}

// ethernet prepends a header to a packet.
func ethernet(dst, src api.MAC, p packet) []byte {
	f := append(dst[:], src[:]...)
	return append(binary.BigEndian.AppendUint16(f, p.etherType), p.data...)
}

// packet is the payload of an Ethernet frame. mark is the part that no switch and no router changes.
type packet struct {
	etherType  uint16
	data, mark []byte
}

// arp is a request (1) or a reply (2).
func arp(op byte, sha api.MAC, spa netip.Addr, tha api.MAC, tpa netip.Addr) packet {
	b := []byte{0, 1, 0x08, 0, 6, 4, 0, op}
	b = append(append(b, sha[:]...), spa.AsSlice()...)
	b = append(append(b, tha[:]...), tpa.AsSlice()...)
	return packet{unix.ETH_P_ARP, b, b}
}

// udp is a datagram with TTL 64 whose payload is its mark.
func udp(src, dst netip.Addr, payload string) packet {
	b := binary.BigEndian.AppendUint16(nil, 4242)
	b = binary.BigEndian.AppendUint16(b, 4242)
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(payload)))
	b = append(append(b, 0, 0), payload...)
	p := ip(src, dst, unix.IPPROTO_UDP, 64, b, 6)
	p.mark = []byte(payload)
	return p
}

// icmp6 is a message of neighbour discovery: its type, and what follows code and checksum. Its mark begins with the
// addresses of the header.
func icmp6(src, dst netip.Addr, typ byte, body []byte) packet {
	p := ip(src, dst, unix.IPPROTO_ICMPV6, 255, append([]byte{typ, 0, 0, 0}, body...), 2)
	p.mark = p.data[8:]
	return p
}

// solicitation requests the MAC of target, advertisement announces mac.
func solicitation(src, target netip.Addr, mac api.MAC) packet {
	return icmp6(src, target, 135, linkOption(append(make([]byte, 4), target.AsSlice()...), 1, mac))
}

func advertisement(src, dst, target netip.Addr, mac api.MAC) packet {
	const solicitedOverride = 0x60
	return icmp6(src, dst, 136, linkOption(append([]byte{solicitedOverride, 0, 0, 0}, target.AsSlice()...), 2, mac))
}

func linkOption(body []byte, typ byte, mac api.MAC) []byte {
	return append(append(body, typ, 1), mac[:]...)
}

// ip is an IPv4 or IPv6 packet. The checksum of its payload is written at the offset checksumAt.
func ip(src, dst netip.Addr, proto, ttl byte, payload []byte, checksumAt int) packet {
	pseudo := append(src.AsSlice(), dst.AsSlice()...)
	pseudo = append(pseudo, 0, proto, byte(len(payload)>>8), byte(len(payload)))
	binary.BigEndian.PutUint16(payload[checksumAt:], checksum(append(pseudo, payload...)))
	if src.Is6() {
		b := append([]byte{0x60, 0, 0, 0, byte(len(payload) >> 8), byte(len(payload)), proto, ttl}, src.AsSlice()...)
		return packet{etherType: unix.ETH_P_IPV6, data: append(append(b, dst.AsSlice()...), payload...)}
	}
	size := 20 + len(payload)
	b := append([]byte{0x45, 0, byte(size >> 8), byte(size), 0, 0, 0, 0, ttl, proto, 0, 0}, src.AsSlice()...)
	b = append(b, dst.AsSlice()...)
	binary.BigEndian.PutUint16(b[10:], checksum(b))
	return packet{etherType: unix.ETH_P_IP, data: append(b, payload...)}
}

// checksum is the Internet checksum (RFC 1071).
func checksum(b []byte) uint16 {
	var sum uint32
	for i, c := range b {
		sum += uint32(c) << (8 * (1 - i%2))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// neighbours is the neighbour table of a place: MAC by address, of the resolved ones.
func (p place) neighbours(t *testing.T) map[netip.Addr]string {
	t.Helper()
	out := map[netip.Addr]string{}
	for line := range strings.SplitSeq(p.exec(t, "ip neigh show"), "\n") {
		f := strings.Fields(line)
		for i := 1; i+1 < len(f); i++ {
			if f[i] == "lladdr" {
				out[netip.MustParseAddr(f[0])] = f[i+1]
			}
		}
	}
	return out
}
