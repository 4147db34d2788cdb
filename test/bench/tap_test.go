package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/capture"
	"github.com/fairlead-cni/fairlead/test/bench/report"
	"github.com/fairlead-cni/fairlead/test/nstest"
)

// BenchmarkRootTap measures what a packet capture (reachability: probe, while a path fails) costs a node that forwards
// as many small packets as one processor sends. They are other pods' packets, in a tunnel: the filter inspects each of
// them completely. At most four paths are captured at a time.
func BenchmarkRootTap(b *testing.B) {
	from, node, to := nstest.New(b), nstest.New(b), nstest.New(b)
	nstest.Veth(node, "eth0", from, "eth0")
	nstest.Veth(node, "eth1", to, "eth0")
	node.IP("addr add 192.0.2.1/25 dev eth0")
	node.IP("addr add 192.0.2.129/25 dev eth1")
	node.Exec("sysctl", "-qw", "net.ipv4.ip_forward=1")
	from.IP("addr add 192.0.2.2/25 dev eth0")
	from.IP("route add default via 192.0.2.1")
	to.IP("addr add 192.0.2.130/25 dev eth0")
	to.IP("route add default via 192.0.2.129")
	f := newFlood(b, from, to, netip.MustParseAddrPort("192.0.2.130:6081"))
	f.forwarded(b) // warm-up: ARP
	for b.Loop() {
		for _, n := range []int{1, 4} {
			var with, without []float64
			for range speedRounds {
				var looked, plain float64
				for range turns {
					plain += f.forwarded(b)
					close := looks(b, node, n)
					looked += f.forwarded(b)
					close()
				}
				with, without = append(with, looked/turns), append(without, plain/turns)
			}
			report.Add(b, report.Result{Group: "Reachability", Name: fmt.Sprintf("forwarded packets, %d looks at packets", n), Unit: "packets/CPU-s",
				Ours: with, Peer: without, Against: "none", Note: "64 bytes in a tunnel, one processor, veths"})
		}
	}
}

// looks opens n packet sockets as a packet capture does, for paths without packets, and returns a function that closes
// them.
func looks(b *testing.B, node *nstest.NS, n int) func() {
	b.Helper()
	var open []*capture.Socket
	for i := range n {
		f := capture.Filter{Of: []netip.Addr{netip.MustParseAddr("10.77.1.254")},
			With:   []netip.Addr{netip.AddrFrom4([4]byte{10, 77, 100, byte(i)})},
			Tunnel: api.TunnelGeneve, Port: 6081}
		node.Must(func() error {
			s, err := capture.OpenAll(f, 256)
			open = append(open, s)
			return err
		})
	}
	return func() {
		for _, s := range open {
			s.Stop()
			if _, err := s.Next(); !errors.Is(err, io.EOF) {
				b.Fatalf("a look keeps packets that are not of its path: %v", err)
			}
			if err := s.Close(); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// flood sends packets from one namespace to another.
type flood struct {
	to       *nstest.NS
	conn     *ipv4.PacketConn
	messages []ipv4.Message
}

func newFlood(b *testing.B, from, to *nstest.NS, at netip.AddrPort) *flood {
	b.Helper()
	var conn net.PacketConn
	var sink *net.UDPConn
	from.Must(func() (err error) { conn, err = net.ListenPacket("udp4", ":0"); return err })
	to.Must(func() (err error) {
		sink, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
		return err
	})
	b.Cleanup(func() { conn.Close(); sink.Close() })
	if err := sink.SetReadBuffer(1); err != nil { // unread packets are dropped
		b.Fatal(err)
	}
	f := &flood{to: to, conn: ipv4.NewPacketConn(conn)}
	for range 64 {
		f.messages = append(f.messages, ipv4.Message{Buffers: [][]byte{tunnelled()}, Addr: net.UDPAddrFromAddrPort(at)})
	}
	return f
}

// tunnelled is a Geneve packet (RFC 8926) between two other pods.
func tunnelled() []byte {
	b := []byte{0, 0, 0x65, 0x58, 0, 0, 0, 0}
	b = append(b, make([]byte, 12)...)
	b = append(b, 8, 0)
	b = append(b, 0x45, 0, 0, 64, 0, 0, 0, 0, 64, 17, 0, 0, 10, 77, 1, 2, 10, 77, 2, 2)
	b = binary.BigEndian.AppendUint32(b, 1000<<16|53)
	return append(b, make([]byte, 40)...)
}

// forwarded is the number of packets that arrive per second of CPU time of the sending thread, which also does the
// kernel's forwarding: other processes may keep the machine busy.
func (f *flood) forwarded(b *testing.B) float64 {
	b.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, used := f.arrived(b), threadCPU(b)
	for threadCPU(b)-used < streamTime {
		if _, err := f.conn.WriteBatch(f.messages, 0); err != nil {
			b.Fatal(err)
		}
	}
	took := threadCPU(b) - used
	return float64(f.arrived(b)-before) / took.Seconds()
}

// threadCPU is the CPU time of the calling thread.
func threadCPU(b *testing.B) time.Duration {
	b.Helper()
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		b.Fatal(err)
	}
	return time.Duration(t.Nano())
}

// arrived is the number of packets received so far.
func (f *flood) arrived(b *testing.B) (n uint64) {
	b.Helper()
	f.to.Must(func() error {
		l, err := netlink.LinkByName("eth0")
		if err == nil {
			n = l.Attrs().Statistics.RxPackets
		}
		return err
	})
	return n
}
