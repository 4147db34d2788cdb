package reach

import (
	"encoding/binary"
	"fmt"
	"time"
)

// A transfer is a TCP connection from one end to another, to Port, over which TransferSize bytes (Content) are sent and
// a count of them comes back (Receipt). It shows faults that single packets do not: with segments longer than the MTU,
// which the kernel leaves to NICs to split, and those of devices that pass UDP and drop TCP.
const (
	// TransferSize is many segments. A kernel that has to send each by itself, after it was lost in a larger one, may
	// still finish in time.
	TransferSize = 64 << 10
	// TransferFor is how many intervals a transfer may take. After TransferEvery intervals the next begins, to another
	// peer; one that has failed is repeated after transferAgain intervals until the result is decided.
	TransferFor, TransferEvery, transferAgain = 4, 15, 5
	// enough is how many transfers in a row must fail alike, and enoughResent how many must be Resent, each followed by
	// one in single segments that is not. A rate limit that drops at random would have to alternate for as long.
	enough, enoughResent = 2, 4
	// resentShare: one retransmitted segment in this many shows that those longer than the MTU are lost. The kernel sends
	// their data again in smaller ones, and what follows in long ones.
	resentShare = 5
)

// Outcome is the outcome of a transfer.
type Outcome string

const (
	// Unclear shows nothing: an agent that does not run, or is of an earlier version, refuses a transfer.
	Unclear    Outcome = ""
	Passed     Outcome = "passed"
	Unanswered Outcome = "the connection was not answered"
	// Stuck: the kernels have established the connection, so small segments pass both ways.
	Stuck Outcome = "the connection was established, but the data does not arrive"
	// Resent: everything has arrived, much of it only after it was retransmitted.
	Resent Outcome = "long segments are lost, and their data arrives after it is retransmitted; in short ones everything arrives at once"
)

// transfers are the recent ones to a peer.
type transfers struct {
	failed int // in a row, alike
	last   Outcome
	ended  time.Time
	// single: the next is one in single segments. After each that was Resent, this distinguishes loss by length from a
	// rate limit, which drops packets of any length.
	single bool
	lost   Outcome // the fault that they have shown; Unclear: none
}

// Arrived is the outcome of a transfer that has arrived completely: resent of its segments were retransmitted. With
// single segments next to none may be.
func Arrived(segments, resent int, single bool) Outcome {
	if resent*resentShare >= segments || single && resent > 1 {
		return Resent
	}
	return Passed
}

// enough is how many such outcomes in a row show a fault.
func (o Outcome) enough() int {
	if o == Resent {
		return enoughResent
	}
	return enough
}

// Single reports whether the next transfer is one whose segments are each sent by themselves.
func (l *Link) Single() bool { return l.transfers.single }

// Transferred records the outcome of a transfer.
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

// TransferPasses reports whether single packets of all sizes pass: only then does a transfer show anything.
func (l *Link) TransferPasses(now time.Time) bool {
	s := l.State(now)
	return s.From == Works && (s.To == Works || s.To == NoTCP)
}

// TransferAgain reports whether the last transfer has failed and is to be repeated now.
func (l *Link) TransferAgain(now time.Time) bool {
	after := transferAgain * l.Interval
	if l.transfers.lost != Unclear {
		after = TransferEvery * l.Interval
	}
	return l.transfers.failed > 0 && now.Sub(l.transfers.ended) >= after
}

// evaluateTransfers judges failed transfers: they show nothing until a packet shows that the peer has heard this end
// after the last one, nor while any packet of the window is lost, in either direction, because of a possible outage. If
// losses continue, they make TCP fail.
func (l *Link) evaluateTransfers() {
	t, h := &l.transfers, l.last.Heard
	if l.lossy || l.narrow || h.Lossy || h.Narrow {
		t.failed = 0
	}
	lossless := l.lost() == 0 && h.Lost == 0
	if t.failed >= t.last.enough() && !t.single && lossless && h.Age >= 0 && l.heard.Add(-h.Age).After(t.ended) {
		t.lost = t.last
	}
}

// Content is what a transfer sends from one node to another, by NameHash: no other pair has the same.
func Content(from, to uint64) []byte {
	b := make([]byte, 0, TransferSize)
	for i := range uint64(TransferSize / 8) {
		b = binary.BigEndian.AppendUint64(b, (from+i)*0x9e3779b97f4a7c15^to)
	}
	return b
}

// Receipt is what comes back once everything has arrived: the number of bytes.
func Receipt() []byte { return binary.BigEndian.AppendUint32(nil, TransferSize) }

// noTCP is about a path that passes single packets of every size, but no transfer.
func (e Evidence) noTCP(v Verdict) Verdict {
	v.Cause, v.Broken = CauseTCP, true
	if e.State.TCP != Unanswered {
		v.Cause = CauseSegments
	}
	v.Text = e.broken() + ": " + transferText(v.Cause)
	return v
}

// transferText is what is known about a fault that only transfers show.
func transferText(c Cause) string {
	if c == CauseSegments {
		return "packets of every size pass, and connections are established, but the data does not arrive, or only after it is retransmitted " +
			"piece by piece: a NIC or its driver may corrupt segments longer than the MTU, which it has to split, or something on the path drops them"
	}
	return "UDP packets of every size pass in both directions, but no TCP connection is answered: something on the path drops TCP, in one " +
		"direction or both"
}

// transferSeen is the evidence in words.
func (s State) transferSeen() string {
	return fmt.Sprintf("of the last TCP transfers, %d or more in a row failed: %s", s.TCP.enough(), s.TCP)
}
