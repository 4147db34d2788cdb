// Package denials decides which denied packets the agent logs: the first of a kind at once, then once a minute how many
// came since, within a limit of lines. It is pure.
package denials

import (
	"maps"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/policy/compile"
)

const (
	// every is how often a kind is logged again.
	every = time.Minute
	// perSecond and burst limit the lines, maxKinds the kinds that are remembered.
	perSecond = 5
	burst     = 50
	maxKinds  = 1000
)

// Kind is what packets that share one line have in common.
type Kind = compile.Connection

// Log keeps what was logged. The zero value is ready to use.
type Log struct {
	kinds      map[Kind]*kind
	lines      float64 // that may be written, as of filled
	filled     time.Time
	leftOut    uint64
	reportedAt time.Time // when leftOut was last reported
}

type kind struct {
	loggedAt time.Time
	packets  uint64 // since
}

// Count counts a packet, and reports whether to log it now.
func (l *Log) Count(k Kind, now time.Time) bool {
	if seen := l.kinds[k]; seen != nil {
		seen.packets++
		return false
	}
	if len(l.kinds) >= maxKinds || !l.allow(now) {
		l.leftOut++
		return false
	}
	if l.kinds == nil {
		l.kinds = map[Kind]*kind{}
	}
	l.kinds[k] = &kind{loggedAt: now}
	return true
}

// allow takes one line from the limit, if one is left.
func (l *Log) allow(now time.Time) bool {
	if l.filled.IsZero() {
		l.lines = burst
	}
	l.lines = min(burst, l.lines+perSecond*now.Sub(l.filled).Seconds())
	if l.filled = now; l.lines < 1 {
		return false
	}
	l.lines--
	return true
}

// CountMissed counts packets about which nothing is known.
func (l *Log) CountMissed(packets uint64) { l.leftOut += packets }

// Due is what to log now.
type Due struct {
	// Again are kinds that were logged before, with the number of packets since.
	Again map[Kind]uint64
	// LeftOut is the number of packets that are in no line.
	LeftOut uint64
}

// Due returns what to log now. A kind without packets for a minute is dropped.
func (l *Log) Due(now time.Time) Due {
	due := Due{Again: map[Kind]uint64{}}
	for _, k := range slices.Collect(maps.Keys(l.kinds)) {
		seen := l.kinds[k]
		switch {
		case now.Sub(seen.loggedAt) < every:
		case seen.packets == 0:
			delete(l.kinds, k)
		case l.allow(now):
			due.Again[k] = seen.packets
			*seen = kind{loggedAt: now}
		default:
			l.leftOut += seen.packets
			delete(l.kinds, k)
		}
	}
	if l.leftOut > 0 && now.Sub(l.reportedAt) >= every {
		due.LeftOut, l.leftOut, l.reportedAt = l.leftOut, 0, now
	}
	return due
}
