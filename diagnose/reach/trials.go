package reach

import (
	"encoding/binary"
	"hash/fnv"
)

// Where a bond, a link aggregation or ECMP selects one of several paths by flow, one path that drops everything looks
// like loss. So an end whose packets get lost sends them from a few source ports in turn: those from one port all take
// the same path.
const (
	// trialPorts is how many ports a trial uses in turn. trialPackets packets decide it, and it has trialLength.
	trialPorts, trialPackets, trialLength = 4, 24, 28
	// Source ports of a trial: the kernel chooses none of these (ip_local_port_range).
	lowestTrialPort, trialPortRange = 61000, 4536
)

// trials is what an end has found out by trials.
type trials struct {
	sent  uint32 // packets in trials of this end
	trial uint8  // the peer's current one
	first uint32 // the number of its first packet that arrived
	bad   uint8  // from how many ports nothing arrives, according to the last decided trial
}

// next is the trial of the next packet; 0: none. A trial that has shown something continues until it is refuted.
func (w *trials) next(lossy, shown bool) uint8 {
	if at := w.sent % trialLength; !lossy && at > 0 { // the next one is a new trial
		w.sent += trialLength - at
	}
	if !lossy {
		return 0
	}
	trial := uint8(w.sent/trialLength%255) + 1
	if last := w.sent%trialLength == trialLength-1; !shown || !last {
		w.sent++
	}
	return trial
}

// record takes a packet from the peer into account.
func (w *trials) record(p Packet, a arrivals) {
	if p.Seq != a.highest { // it is late
		return
	}
	if p.Trial != w.trial {
		w.trial, w.first = p.Trial, p.Seq
	}
	n := min(a.highest-w.first+1, uint32(a.counted))
	if p.Trial == 0 || n < trialPackets {
		return
	}
	var sent, came [trialPorts]int
	for i := range n {
		way := (a.highest - i) % trialPorts
		sent[way]++
		came[way] += int(a.seen >> i & 1)
	}
	bad, some := uint8(0), false
	for way := range trialPorts {
		if came[way] == 0 {
			bad++
		}
		some = some || came[way] > 0 && came[way] < sent[way]
	}
	switch {
	case some:
		w.bad = 0
	case bad > 0: // else nothing was lost, as all took paths that work
		w.bad = bad
	}
}

// Port is the source port of a packet; 0: any.
func (p Packet) Port() uint16 {
	if p.Trial == 0 {
		return 0
	}
	h := fnv.New32a()
	for _, n := range []uint64{p.From, p.To, uint64(p.Trial), uint64(p.Seq % trialPorts)} {
		h.Write(binary.BigEndian.AppendUint64(nil, n))
	}
	return uint16(lowestTrialPort + h.Sum32()%trialPortRange)
}
