package probe

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
)

// loopback is this network namespace, with an address on which nothing is lost.
func loopback(t *testing.T) (ns.NetNS, netip.Addr) {
	t.Helper()
	here, err := ns.GetCurrentNS()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { here.Close() })
	return here, netip.MustParseAddr("127.0.0.1")
}

// On loopback nothing is lost; without an echo every datagram is, and is counted.
func TestRootStream(t *testing.T) {
	here, lo := loopback(t)
	port, stop, err := Echo(here, lo)
	if err != nil {
		t.Fatal(err)
	}
	fresh := func() Report {
		s := StartFresh(here, lo, netip.AddrPortFrom(lo, port), 2*time.Millisecond)
		s.await(t, 100)
		return s.Stop()
	}
	one := func() Report {
		s, err := Start(here, lo, netip.AddrPortFrom(lo, port), 2*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		s.await(t, 100)
		return s.Stop()
	}
	streams := map[string]func() Report{"of one flow": one, "of fresh flows": fresh}
	for name, run := range streams {
		if r := run(); r.Lost != 0 || r.Duplicates != 0 || r.Outage != 0 {
			t.Errorf("with an echo, %s: %s", name, r)
		}
	}
	stop()
	for name, run := range streams {
		if r := run(); r.Lost != r.Sent || r.Outage != time.Duration(r.Sent)*2*time.Millisecond {
			t.Errorf("without an echo, %s: %s", name, r)
		}
	}
}

// await waits until a stream has sent so many datagrams.
func (s *Stream) await(t *testing.T, sent int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		s.mu.Lock()
		now := s.report.Sent
		s.mu.Unlock()
		if now >= sent {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d datagrams are sent in a minute, want %d", now, sent)
		}
	}
}

// A process that was stopped and has much to catch up with sends no burst.
func TestRootCatchUp(t *testing.T) {
	here, lo := loopback(t)
	port, stop, err := Echo(here, lo)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	s := newStream(here, lo, netip.AddrPortFrom(lo, port), 20*time.Millisecond)
	if s.conn, err = s.socket(); err != nil {
		t.Fatal(err)
	}
	defer s.conn.Close()
	began := time.Now()
	s.begin = began.Add(-time.Minute)
	s.stopped.Go(s.send)
	s.await(t, 50)
	if took := time.Since(began); took < 50*s.every/catchUp {
		t.Errorf("50 datagrams were sent in %s, want at least %s between two", took, s.every/catchUp)
	}
	close(s.stop)
	s.stopped.Wait()
}

// A process that was stopped while late replies arrived finds them all, however many there are.
func TestRootAnswersToALateProcess(t *testing.T) {
	here, lo := loopback(t)
	s := newStream(here, lo, netip.AddrPort{}, time.Millisecond)
	var err error
	if s.conn, err = s.socket(); err != nil {
		t.Fatal(err)
	}
	peer, err := listen(here, lo)
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	to := s.conn.LocalAddr().(*net.UDPAddr).AddrPort()
	for s.report.Sent = range 3000 { // 3 seconds of it
		if _, err := peer.WriteToUDPAddrPort(binary.BigEndian.AppendUint64(nil, uint64(s.report.Sent)), to); err != nil {
			t.Fatal(err)
		}
	}
	s.report.Sent, s.ended = 3000, true
	if err := s.conn.SetReadDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	if s.receive(s.conn); len(s.seen) != 3000 {
		t.Errorf("of 3000 answers that are there %d were read", len(s.seen))
	}
}
