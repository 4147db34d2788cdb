package reach

import (
	"testing"
	"time"
)

// trialOf makes a link receive a trial in which packets from some ports are lost, starting at sequence number first.
// The sending agent started at number 1.
func trialOf(l *Link, now time.Time, first uint32, trial uint8, packets int, lost func(port uint32) bool) time.Time {
	for i := range uint32(packets) {
		now = now.Add(2 * time.Second)
		l.Next(now)
		seq := first + i
		if !lost(seq % trialPorts) {
			l.Receive(Packet{Seq: seq, Uptime: time.Duration(seq) * 2 * time.Second, Interval: 2 * time.Second, Trial: trial,
				Heard: Heard{Lossy: true}}, now)
		}
	}
	return now
}

// A trial belongs to one run of an agent, and has no result before it is decided.
func TestTrials(t *testing.T) {
	l, now := &Link{Interval: 2 * time.Second}, time.Unix(1e9, 0)
	none := func(uint32) bool { return false }
	one := func(port uint32) bool { return port == 1 }
	bad := func(want uint8, when string) {
		t.Helper()
		if got := l.State(now).BadFrom; got != want {
			t.Errorf("%s: %d ports are bad, want %d", when, got, want)
		}
	}
	now = trialOf(l, now, 100, 1, 20, one)
	bad(0, "of 20 packets")
	now = trialOf(l, now, 120, 1, 10, one)
	bad(1, "of 30 packets")
	now = trialOf(l, now.Add(time.Minute), 1, 1, 20, one)
	bad(0, "20 packets of another agent")
	now = trialOf(l, now, 21, 1, 10, one)
	bad(1, "30 packets of another agent")
	now = trialOf(l, now, 31, 2, 27, func(port uint32) bool { return port == 2 })
	bad(1, "another trial, with another port")
	calls := 0
	now = trialOf(l, now, 58, 3, 28, func(port uint32) bool { calls++; return port == 2 && calls%8 < 4 })
	bad(0, "loss of some from a port")
	trialOf(l, now, 86, 0, 64, none)
	bad(0, "no loss")
}

// A trial has as many ports as paths to try, another trial has different ones, and none is in ip_local_port_range.
func TestTrialPorts(t *testing.T) {
	ports := map[uint16]bool{}
	for seq := range uint32(100) {
		for trial := range uint8(2) {
			p := Packet{From: 1, To: 2, Seq: seq, Trial: trial + 1}.Port()
			if ports[p] = true; p < lowestTrialPort {
				t.Errorf("port %d", p)
			}
		}
	}
	if len(ports) != 2*trialPorts || (Packet{Seq: 1}).Port() != 0 {
		t.Errorf("%d ports in two trials", len(ports))
	}
}
