package reach

import (
	"encoding/binary"
	"fmt"
	"time"
)

// A transfer is a TCP connection from one end to another, to Port, over which TransferSize bytes (Content) are sent and
// a count of them comes back (Receipt). It shows what single packets do not: segments longer than the MTU, which the
// kernel leaves to NICs to cut, and what passes UDP and drops TCP.
const (
	// TransferSize is many segments. A kernel that has to send each by itself, after it was lost in a larger one, may
	// still be in time.
	TransferSize = 64 << 10
	// TransferFor is how many intervals a transfer may take. TransferEvery is after how many the next begins, to another
	// peer, and transferAgain after how many one that has failed is tried again until it is decided.
	TransferFor, TransferEvery, transferAgain = 4, 15, 5
	// enough is how many transfers in a row must fail alike, and enoughResent how many must be Resent, each with one in
	// single segments after it that is not. A rate limit that drops some at random would have to alternate so long.
	enough, enoughResent = 2, 4
	// resentShare: one segment in so many that is sent again shows that those longer than the MTU are lost. The kernel
	// sends what was in them in smaller ones, and what follows in long ones again.
	resentShare = 5
)

// Outcome is what became of a transfer.
type Outcome string

const (
	// Unclear says nothing: an agent that does not run, or of an earlier version, refuses it.
	Unclear    Outcome = ""
	Passed     Outcome = "passed"
	Unanswered Outcome = "the connection was not answered"
	// Stuck: the kernels have made the connection, so that small segments pass both ways.
	Stuck Outcome = "the connection was made, and what is sent over it does not arrive"
	// Resent: all has arrived, much of it only once it was sent again.
	Resent Outcome = "long segments are lost, and what was in them arrives once it is sent again; in short ones all arrives at once"
)

// transfers are those to a peer of late.
type transfers struct {
	failed int // in a row, alike
	last   Outcome
	ended  time.Time
	// single: the next is one in single segments. After each that was Resent this tells what is lost by its length from
	// what a rate limit drops, whatever its length.
	single bool
	lost   Outcome // what they have shown; Unclear: nothing is wrong
}

// Arrived is the outcome of a transfer of which all has arrived: of so many segments so many were sent again. In single
// segments next to none must be.
func Arrived(segments, resent int, single bool) Outcome {
	if resent*resentShare >= segments || single && resent > 1 {
		return Resent
	}
	return Passed
}

// enough is how many of these in a row show a fault.
func (o Outcome) enough() int {
	if o == Resent {
		return enoughResent
	}
	return enough
}

// Single reports whether the next transfer is one of which each segment is sent by itself.
func (l *Link) Single() bool { return l.transfers.single }

// Transferred takes in what became of a transfer.
func (l *Link) Transferred(o Outcome, now time.Time) {
	t := &l.transfers
	if t.single && o == Passed {
		t.single, t.ended = false, now
		return
	}
	if t.single || o == Passed || o == Unclear {
		*t = transfers{}
		return
	}
	if o != t.last {
		t.failed = 0
	}
	t.failed, t.last, t.ended, t.single = t.failed+1, o, now, o == Resent && t.lost == Unclear
}

// TransferPasses reports whether single packets of all sizes pass, so that a transfer shows something.
func (l *Link) TransferPasses(now time.Time) bool {
	s := l.State(now)
	return s.From == Works && (s.To == Works || s.To == NoTCP)
}

// TransferAgain reports whether one is to be tried again now, as the last has failed.
func (l *Link) TransferAgain(now time.Time) bool {
	after := transferAgain * l.Interval
	if l.transfers.lost != Unclear {
		after = TransferEvery * l.Interval
	}
	return l.transfers.failed > 0 && now.Sub(l.transfers.ended) >= after
}

// weighTransfers says what transfers have shown that failed: nothing until a packet has come that shows that the peer
// has heard this end after the last, nor while any packet of the window is lost, in either direction, as there may have
// been an outage. Where losses go on, TCP fails by them.
func (l *Link) weighTransfers() {
	t, h := &l.transfers, l.last.Heard
	if l.lossy || l.narrow || h.Lossy || h.Narrow {
		t.failed = 0
	}
	lossless := l.lost() == 0 && h.Lost == 0
	if t.failed >= t.last.enough() && !t.single && lossless && h.Age >= 0 && l.heard.Add(-h.Age).After(t.ended) {
		t.lost = t.last
	}
}

// Content is what is sent from a node to another, by NameHash: no other pair has the same.
func Content(from, to uint64) []byte {
	b := make([]byte, 0, TransferSize)
	for i := range uint64(TransferSize / 8) {
		b = binary.BigEndian.AppendUint64(b, (from+i)*0x9e3779b97f4a7c15^to)
	}
	return b
}

// Receipt is what comes back once all has arrived: how many bytes.
func Receipt() []byte { return binary.BigEndian.AppendUint32(nil, TransferSize) }

// noTCP is about a path that passes single packets of every size, and no transfer.
func (e Evidence) noTCP(v Verdict) Verdict {
	v.Cause, v.Broken = CauseTCP, true
	if e.State.TCP != Unanswered {
		v.Cause = CauseSegments
	}
	v.Text = e.broken() + ": " + transferText(v.Cause)
	return v
}

// transferText is what is known of a fault that only transfers show.
func transferText(c Cause) string {
	if c == CauseSegments {
		return "packets of every size pass, and connections are made, but what is sent over them does not arrive, or only once it is sent again " +
			"piece by piece: a NIC or its driver may spoil segments longer than the MTU that it has to cut, or something on the way drops them"
	}
	return "packets of UDP of every size pass in both directions, but no connection is answered: something on the way drops TCP, in one " +
		"direction or both"
}

// transferSeen is the evidence in words.
func (s State) transferSeen() string {
	return fmt.Sprintf("of the last transfers by TCP %d or more in a row failed: %s", s.TCP.enough(), s.TCP)
}
