// Package probe counts lost packets. A stream sends numbered UDP datagrams at fixed times from one network namespace to
// an echo in another, so that an outage does not slow it down and hide itself, as with ping(8).
package probe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"
)

// A stream waits for missing answers, as on a busy machine they arrive late: looks times for look each. If this process
// gets no processor for seconds, that costs one look.
const looks, look = 20, 100 * time.Millisecond

// buffer is a socket's receive buffer: it holds the datagrams of seconds in which they are not read, or the burst that
// makes up for seconds without sending. The kernel counts 768 bytes for a small one.
const buffer = 4 << 20

// catchUp is how many times as fast as usual a stream sends what it should have sent while this process got no
// processor. All of it at once would overflow the queues of what forwards it, which would look like a loss on the way.
const catchUp = 4

// Report is the result of a stream.
type Report struct {
	Sent, Lost, Duplicates int
	// LongestGap is the longest time without an answer, for whatever reason: a busy machine causes some by itself.
	LongestGap time.Duration
	// Outage is the longest time in which all datagrams were lost: the number in a row, times their interval.
	Outage time.Duration
	// LastLost is when the last lost datagram was due; zero if none was lost.
	LastLost time.Time
	// SendErrors counts datagrams whose send failed; they are lost too.
	SendErrors int
}

func (r Report) String() string {
	return fmt.Sprintf("sent %d, lost %d, duplicates %d, refused %d, outage %s, longest gap %s", r.Sent, r.Lost,
		r.Duplicates, r.SendErrors, r.Outage.Round(time.Millisecond), r.LongestGap.Round(time.Millisecond))
}

// Echo answers every datagram at addr in the network namespace until stop is called. It returns the port.
func Echo(netns ns.NetNS, addr netip.Addr) (port uint16, stop func(), err error) {
	conn, err := listen(netns, addr)
	if err != nil {
		return 0, nil, fmt.Errorf("echo on %s: %w", addr, err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 64)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				conn.WriteToUDPAddrPort(buf[:n], from)
			}
		}
	}()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Port(), func() { conn.Close(); <-done }, nil
}

// Stream is one sender.
type Stream struct {
	conn    *net.UDPConn                 // nil where each datagram has a socket of its own
	socket  func() (*net.UDPConn, error) // creates one
	to      netip.AddrPort
	every   time.Duration
	stop    chan struct{}
	stopped sync.WaitGroup

	mu     sync.Mutex
	begin  time.Time
	seen   map[uint64]int
	last   time.Time
	ended  bool
	report Report
}

// Start sends datagrams from the network namespace to the echo at an interval, all from one port: one flow.
func Start(netns ns.NetNS, from netip.Addr, to netip.AddrPort, every time.Duration) (*Stream, error) {
	s := newStream(netns, from, to, every)
	conn, err := s.socket()
	if err != nil {
		return nil, fmt.Errorf("stream from %s: %w", from, err)
	}
	s.conn = conn
	s.stopped.Go(s.send)
	s.stopped.Go(func() { s.receive(conn) })
	return s, nil
}

// StartFresh is Start with each datagram from another port: each is the first of a new flow.
func StartFresh(netns ns.NetNS, from netip.Addr, to netip.AddrPort, every time.Duration) *Stream {
	s := newStream(netns, from, to, every)
	s.stopped.Go(s.send)
	return s
}

func newStream(netns ns.NetNS, from netip.Addr, to netip.AddrPort, every time.Duration) *Stream {
	return &Stream{to: to, every: every, stop: make(chan struct{}), seen: map[uint64]int{},
		begin: time.Now(), last: time.Now(), socket: func() (*net.UDPConn, error) { return listen(netns, from) }}
}

// Stop ends the stream, waits for late answers and returns the report.
func (s *Stream) Stop() Report {
	close(s.stop)
	ended := time.Now()
	s.stopped.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report.Lost = s.report.Sent - len(s.seen)
	s.report.LongestGap = max(s.report.LongestGap, ended.Sub(s.last))
	for n, row := 0, 0; n < s.report.Sent; n++ {
		row++
		if s.seen[uint64(n)] > 0 {
			row = 0
		}
		s.report.Outage = max(s.report.Outage, time.Duration(row)*s.every)
	}
	for n := s.report.Sent - 1; s.report.Lost > 0 && s.report.LastLost.IsZero(); n-- {
		if s.seen[uint64(n)] == 0 {
			s.report.LastLost = s.due(uint64(n))
		}
	}
	return s.report
}

// Answers reports whether an answer has arrived since then.
func (s *Stream) Answers(since time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last.After(since)
}

func (s *Stream) send() {
	for n := uint64(0); ; n++ {
		select {
		case <-s.stop:
			s.mu.Lock()
			s.ended = true
			if s.conn != nil {
				s.conn.SetReadDeadline(time.Now()) // the first look
			}
			s.mu.Unlock()
			return
		case <-time.After(max(time.Until(s.due(n)), s.every/catchUp)):
		}
		err := s.sendOne(n)
		s.mu.Lock()
		s.report.Sent++
		if err != nil {
			s.report.SendErrors++
		}
		s.mu.Unlock()
	}
}

// sendOne sends datagram n.
func (s *Stream) sendOne(n uint64) error {
	conn := s.conn
	if conn == nil {
		var err error
		if conn, err = s.socket(); err != nil {
			return err
		}
		conn.SetReadDeadline(time.Now().Add(look))
		s.stopped.Go(func() { s.receive(conn) })
	}
	_, err := conn.WriteToUDPAddrPort(binary.BigEndian.AppendUint64(nil, n), s.to)
	return err
}

// due is when datagram n is sent.
func (s *Stream) due(n uint64) time.Time { return s.begin.Add(time.Duration(n) * s.every) }

// complete reports whether the stream has ended, and all its answers are there. s.mu must be held.
func (s *Stream) complete() bool { return s.conn != nil && s.ended && len(s.seen) == s.report.Sent }

// gone reports whether no look is left for answers, or needed.
func (s *Stream) gone(looked int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return looked >= looks || s.complete()
}

// receive reads replies until there are none; if the socket is for one datagram, until its reply.
func (s *Stream) receive(conn *net.UDPConn) {
	defer conn.Close()
	buf := make([]byte, 64)
	for looked := 0; ; {
		n, _, err := conn.ReadFromUDPAddrPort(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if looked++; s.gone(looked) {
				return
			}
			conn.SetReadDeadline(time.Now().Add(look))
			continue
		}
		if err != nil || n != 8 {
			continue // ICMP errors of lost datagrams arrive here
		}
		s.mu.Lock()
		seq := binary.BigEndian.Uint64(buf)
		if s.seen[seq]++; s.seen[seq] > 1 {
			s.report.Duplicates++
		}
		s.report.LongestGap = max(s.report.LongestGap, time.Since(s.last))
		s.last = time.Now()
		done := s.conn == nil
		if s.complete() {
			s.conn.SetReadDeadline(time.Now())
		}
		s.mu.Unlock()
		if done {
			return
		}
	}
}

func listen(netns ns.NetNS, addr netip.Addr) (conn *net.UDPConn, err error) {
	err = netns.Do(func(ns.NetNS) error {
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
		return err
	})
	if err != nil {
		return nil, err
	}
	raw, err := conn.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { // without root it is what the kernel allows
			if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, buffer) != nil {
				_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, buffer)
			}
		})
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}
