package reach

import (
	"encoding/binary"
	"hash/fnv"
)

// Where a bond, a link aggregation or ECMP chooses by the flow which of several ways a packet takes, one way that drops
// all looks like loss. So an end whose packets get lost sends them from a few source ports in turn: by each, all take
// one way.
const (
	// tryPorts are in turn in a trial, which is decided by tryFor packets and has tryLength.
	tryPorts, tryFor, tryLength = 4, 24, 28
	// Source ports of a trial: the kernel chooses none of these (ip_local_port_range).
	lowestTryPort, tryPortRange = 61000, 4536
)

// ways is what an end knows of trials.
type ways struct {
	sent  uint32 // packets in trials of this end
	trial uint8  // of the peer, that goes on
	first uint32 // the number of its first packet that came
	bad   uint8  // from how many ports nothing comes, as the last trial has shown that was decided
}

// next is the trial that the next packet is of; 0: none. One that has shown something goes on until it is refuted.
func (w *ways) next(lossy, shown bool) uint8 {
	if at := w.sent % tryLength; !lossy && at > 0 { // the next time is another one
		w.sent += tryLength - at
	}
	if !lossy {
		return 0
	}
	trial := uint8(w.sent/tryLength%255) + 1
	if last := w.sent%tryLength == tryLength-1; !shown || !last {
		w.sent++
	}
	return trial
}

// try takes in a packet of the peer, of those that arrived.
func (w *ways) try(p Packet, a arrivals) {
	if p.Seq != a.highest { // it is late
		return
	}
	if p.Trial != w.trial {
		w.trial, w.first = p.Trial, p.Seq
	}
	n := min(a.highest-w.first+1, uint32(a.counted))
	if p.Trial == 0 || n < tryFor {
		return
	}
	var sent, came [tryPorts]int
	for i := range n {
		way := (a.highest - i) % tryPorts
		sent[way]++
		came[way] += int(a.seen >> i & 1)
	}
	bad, some := uint8(0), false
	for way := range tryPorts {
		if came[way] == 0 {
			bad++
		}
		some = some || came[way] > 0 && came[way] < sent[way]
	}
	switch {
	case some:
		w.bad = 0
	case bad > 0: // else nothing was lost, as all took ways that work
		w.bad = bad
	}
}

// Port is the source port of a packet; 0: any.
func (p Packet) Port() uint16 {
	if p.Trial == 0 {
		return 0
	}
	h := fnv.New32a()
	for _, n := range []uint64{p.From, p.To, uint64(p.Trial), uint64(p.Seq % tryPorts)} {
		h.Write(binary.BigEndian.AppendUint64(nil, n))
	}
	return uint16(lowestTryPort + h.Sum32()%tryPortRange)
}
