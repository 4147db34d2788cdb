package reach

import (
	"cmp"
	"math/bits"
	"slices"
	"time"
)

const (
	// window is how many packets losses are counted over.
	window = 32
	// silent is how many packets in a row must be missing for a path to be broken.
	silent = 5
	// fullEvery: packets whose number this divides are of full size. narrow is how many of these in a row must be
	// missing, and no other packet, for a path to be narrow, and how many must arrive for it to be narrow no longer.
	fullEvery, narrow = 3, 3
	// lossy is how many gaps the small packets of the window must have for a path to be lossy, which it is until there is
	// none. Consecutive missing packets are one gap: an outage that is over. What a restart of Open vSwitch loses at
	// either end is not counted (Restarted).
	lossy = 3
	// late is the number of intervals after which a packet is missing.
	late = 2
	// pause is how many intervals without sending a packet make an end restart its observation.
	pause = 3
	// leaving is for how many intervals an agent that has announced that it stops may be away.
	leaving = 60
)

// DirectionState is what is known about a path in one direction.
type DirectionState string

const (
	Unknown DirectionState = "unknown"
	Works   DirectionState = "works"
	Fails   DirectionState = "fails"
	// Narrow: packets arrive, but none of full size.
	Narrow DirectionState = "narrow"
	// Lossy: packets of any size are lost repeatedly.
	Lossy DirectionState = "lossy"
	// NoTCP: packets of all sizes arrive, but no transfer (TransferSize) does.
	NoTCP DirectionState = "no-tcp"
)

// Link is what an end knows about the path to and from another end. The zero value, with Interval, knows nothing. All
// times are arguments: it reads no clock.
type Link struct {
	// Interval is how often a packet is sent. The peer's interval differs if it asks more or fewer nodes.
	Interval time.Duration
	// Initiates: packets are sent of this end's own accord, not only in return.
	Initiates bool

	began, sent time.Time // since when packets are sent without a pause, and when the last was sent
	seq         uint32
	heard       time.Time // when the peer's last packet arrived
	again       time.Time // when the first arrived after a silence
	last        Packet    // the peer's
	arrivals
	trials        trials
	transfers     transfers
	narrow, lossy bool // what the window shows, or has shown and does not refute yet
	missed        bool // the last full-size packet of the window is missing
	refused       time.Time
}

// arrivals are which of the peer's last packets arrived.
type arrivals struct {
	highest, seen uint32 // the highest number, and which of those below it arrived: a bit each
	counted       int    // how many of the window the peer has sent
}

// State is what is known about a Link at one time.
type State struct {
	// From is the direction from the peer to this node, To the one to the peer.
	From, To DirectionState
	// Away: the peer's kernel answers for an agent that does not run, or the agent has announced that it stops.
	Away bool
	// Refused: the peer's kernel answers, so that packets pass in both directions.
	Refused bool
	// EverHeard: this agent has heard the peer.
	EverHeard bool
	// LostFrom and LostTo are how many of the last 32 packets were lost.
	LostFrom, LostTo int
	// BadFrom and BadTo are how many source ports of a trial lose every packet, while the others lose none.
	BadFrom, BadTo uint8
	// TCP is how transfers to the peer fail, if To is NoTCP.
	TCP Outcome
}

func (d DirectionState) bad() bool { return d == Fails || d == Narrow || d == Lossy || d == NoTCP }

// Works reports whether packets of all sizes pass in both directions.
func (s State) Works() bool { return s.From == Works && s.To == Works }

// Doubtful reports whether a direction does not work as it should.
func (s State) Doubtful() bool {
	return s.From.bad() || s.To.bad()
}

// Recovered reports whether a direction that does not work in s works in later.
func (s State) Recovered(later State) bool {
	return s.From.bad() && later.From == Works || s.To.bad() && later.To == Works
}

// pace is how often the peer sends, as it reports; until it is heard, this end's interval.
func (l *Link) pace() time.Duration { return cmp.Or(l.last.Interval, l.Interval) }

// Silence is how long nothing must have been heard from the peer for a path to be broken.
func (l *Link) Silence() time.Duration { return silent * l.pace() }

// Next is the next packet to the peer.
func (l *Link) Next(now time.Time) Packet {
	if l.paused(now) { // this end has missed packets itself
		l.began, l.transfers.failed = now, 0
	}
	l.seq, l.sent = l.seq+1, now
	return Packet{Seq: l.seq, Uptime: now.Sub(l.began), Interval: l.Interval, Full: l.seq%fullEvery == 0,
		Initiates: l.Initiates,
		Trial:     l.trials.next(l.hearsPeer(now) && l.to() == Lossy, l.last.Heard.Bad > 0),
		Heard:     Heard{Age: age(l.heard, now), Lost: uint8(l.lost()), Narrow: l.narrow, Lossy: l.lossy, Bad: l.trials.bad}}
}

// paused reports whether this process did not run, or is only starting. What it finds then dates from that time.
func (l *Link) paused(now time.Time) bool { return now.Sub(l.sent) > pause*l.Interval }

func age(at, now time.Time) time.Duration {
	if at.IsZero() {
		return -time.Millisecond
	}
	return max(0, now.Sub(at))
}

// Due is when the next packet is to be sent; zero: at once.
func (l *Link) Due() time.Time {
	if l.sent.IsZero() {
		return l.sent
	}
	return l.sent.Add(l.Interval)
}

// Sent is how many packets were sent to the peer.
func (l *Link) Sent() uint32 { return l.seq }

// Pace is how often packets are sent, by the end that sends fewer.
func (l *Link) Pace() time.Duration { return max(l.pace(), l.Interval) }

// Receive records a packet from the peer.
func (l *Link) Receive(p Packet, now time.Time) {
	if l.seq > 0 && l.paused(now) {
		return // it waited in the kernel in the meantime
	}
	another := p.Uptime+l.Silence() < l.last.Uptime // agent
	switch ahead := p.Seq - l.highest; {
	case l.counted == 0, another, int32(ahead) > 0 && p.Uptime < l.last.Uptime:
		l.lossy, l.narrow = false, l.narrow && !another
		l.arrivals = arrivals{highest: p.Seq, seen: 1, counted: 1}
		l.trials.trial, l.trials.bad, l.transfers.failed = 0, 0, 0
	case ahead == 0, -ahead < window:
		l.seen |= 1 << -ahead // late, or twice
	default:
		l.seen, l.highest, l.counted = l.seen<<min(ahead, window)|1, p.Seq, min(window, l.counted+int(min(ahead, window)))
	}
	if l.Silent(now) > l.Silence() {
		l.again = now
	}
	l.heard, l.last = now, p
	l.trials.record(p, l.arrivals)
	if l.evaluate(); !l.lossy {
		l.trials.bad = 0
	}
	l.evaluateTransfers()
}

// evaluate derives from the window whether it is narrow or lossy. A single packet does not change the result: reports
// must not come and go.
func (l *Link) evaluate() {
	var full, small []bool // which arrived, the oldest first
	for i := l.counted - 1; i >= 0; i-- {
		came := l.seen>>i&1 == 1
		if (l.highest-uint32(i))%fullEvery == 0 {
			full = append(full, came)
		} else {
			small = append(small, came)
		}
	}
	gaps := 0
	for i, came := range small {
		if !came && (i == 0 || small[i-1]) {
			gaps++
		}
	}
	l.lossy = gaps >= lossy || l.lossy && gaps > 0
	recent := full[max(0, len(full)-narrow):]
	l.missed = len(recent) > 0 && !recent[len(recent)-1]
	switch {
	case len(recent) < narrow:
	case !slices.Contains(recent, true) && !slices.Contains(small, false):
		l.narrow = true
	case !slices.Contains(recent, false) || l.lossy:
		l.narrow = false
	}
}

// Restarted records that this node's Open vSwitch has stopped or started, so packets were lost here. The window is
// restarted, at the peer too: the Uptime of the next packet says so. A silence still counts from when it began.
func (l *Link) Restarted(now time.Time) {
	l.seen, l.counted, l.lossy, l.missed, l.transfers.failed = 0, 0, false, false, 0
	if l.hearsPeer(now) {
		l.began = now
	}
}

// Refused records that the peer's kernel has refused a packet.
func (l *Link) Refused(now time.Time) { l.refused = now }

func (l *Link) lost() int { return l.counted - bits.OnesCount32(l.seen<<(window-l.counted)) }

// PeerMTU is the MTU of the peer's pods, in bytes; 0: unknown.
func (l *Link) PeerMTU() int { return int(l.last.MTU) }

// hearsPeer reports whether the peer was heard recently.
func (l *Link) hearsPeer(now time.Time) bool {
	return !l.heard.IsZero() && now.Sub(l.heard) <= l.Silence() && !l.last.Leaving
}

// PeerInitiates reports whether the peer has recently sent of its own accord.
func (l *Link) PeerInitiates(now time.Time) bool { return l.last.Initiates && l.hearsPeer(now) }

// Silent is for how long nothing was heard while this end observed.
func (l *Link) Silent(now time.Time) time.Duration {
	return min(age(l.began, now), now.Sub(l.heard))
}

// Late reports whether packets from a peer that was heard before are missing.
func (l *Link) Late(now time.Time) bool { return !l.heard.IsZero() && l.Silent(now) > late*l.pace() }

// Missing reports whether packets from the peer are missing, or none has arrived yet, while it is not known to be away.
func (l *Link) Missing(now time.Time) bool {
	return l.Silent(now) > late*l.pace() && !l.State(now).Away
}

// HeardAgo is how long ago the peer was heard; false: not recently, or it has announced that it stops.
func (l *Link) HeardAgo(now time.Time) (time.Duration, bool) {
	return age(l.heard, now), l.hearsPeer(now)
}

// Undecided reports whether packets from the peer, or full-size ones, are missing, or none has arrived yet, or a
// transfer has failed, for less time than shows a fault, while the peer is not known to be away.
func (l *Link) Undecided(now time.Time) bool {
	s := l.State(now)
	return (l.missed || l.transfers.failed > 0 || l.Silent(now) > late*l.pace()) && !s.Away && !s.Doubtful()
}

// State is what is known at now.
func (l *Link) State(now time.Time) State {
	s := State{From: Unknown, To: Unknown, EverHeard: !l.heard.IsZero(), LostFrom: l.lost()}
	if l.seq == 0 || l.paused(now) {
		return s
	}
	refused := !l.refused.IsZero() && now.Sub(l.refused) <= silent*l.Interval && l.refused.After(l.heard)
	if refused || l.last.Leaving && now.Sub(l.heard) <= leaving*l.Interval {
		s.Away, s.Refused = true, refused
		return s
	}
	if !l.hearsPeer(now) {
		if now.Sub(l.began) > l.Silence() {
			s.From = Fails
		}
		return s
	}
	s.From, s.To, s.LostTo = quality(l.narrow, l.lossy), l.to(), int(l.last.Heard.Lost)
	s.BadFrom, s.BadTo = l.trials.bad, l.last.Heard.Bad
	if s.Works() && l.transfers.lost != Unclear {
		s.To, s.TCP = NoTCP, l.transfers.lost
	}
	return s
}

func quality(narrow, lossy bool) DirectionState {
	switch {
	case lossy:
		return Lossy
	case narrow:
		return Narrow
	}
	return Works
}

// to is the direction to the peer, as the peer reports it. It knows nothing if either end had just started when it
// reported, or if it is heard again after a silence, which its first reports are about.
func (l *Link) to() DirectionState {
	h, since := l.last.Heard, min(l.heard.Sub(l.began), l.last.Uptime, l.heard.Sub(l.again))
	silence := silent * l.Interval
	switch {
	case (h.Age < 0 || h.Age > silence) && since > silence:
		return Fails
	case h.Age < 0 || h.Age > silence:
		return Unknown
	}
	return quality(h.Narrow, h.Lossy)
}
