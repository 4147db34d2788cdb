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
	// enough is how many transfers in a row must fail alike.
	enough = 2
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
)

// transfers are those to a peer of late.
type transfers struct {
	failed int // in a row, alike
	last   Outcome
	ended  time.Time
	lost   Outcome // what they have shown; Unclear: nothing is wrong
}

// Transferred takes in what became of a transfer.
func (l *Link) Transferred(o Outcome, now time.Time) {
	t := &l.transfers
	if o == Passed || o == Unclear {
		*t = transfers{}
		return
	}
	if o != t.last {
		t.failed = 0
	}
	t.failed, t.last, t.ended = t.failed+1, o, now
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
	if t.failed >= enough && lossless && h.Age >= 0 && l.heard.Add(-h.Age).After(t.ended) {
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
	if e.State.TCP == Stuck {
		v.Cause = CauseSegments
	}
	v.Text = e.broken() + ": " + transferText(v.Cause)
	return v
}

// transferText is what is known of a fault that only transfers show.
func transferText(c Cause) string {
	if c == CauseSegments {
		return "packets of every size pass, and connections are made, but what is sent over them does not arrive: a NIC or its driver may spoil " +
			"segments longer than the MTU that it has to cut, or something on the way drops them"
	}
	return "packets of UDP of every size pass in both directions, but no connection is answered: something on the way drops TCP, in one " +
		"direction or both"
}

// transferSeen is the evidence in words.
func (s State) transferSeen() string {
	return fmt.Sprintf("of the last transfers by TCP %d or more in a row failed: %s", enough, s.TCP)
}
