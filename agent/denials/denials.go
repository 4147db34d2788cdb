// Package denials says which denied packets the agent tells of: the first of a kind at once, then once a minute how
// many came since, and no more lines than a log can bear. It is pure.
package denials

import (
	"maps"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/policy/compile"
)

const (
	// every is how often a kind is told of again.
	every = time.Minute
	// perSecond and burst limit the lines, mostKinds what is remembered.
	perSecond = 5
	burst     = 50
	mostKinds = 1000
)

// Kind is what packets have in common that one line is for.
type Kind = compile.Connection

// Log knows what was told. The zero value has told nothing.
type Log struct {
	kinds   map[Kind]*kind
	lines   float64 // that may be written at the time filled
	filled  time.Time
	leftOut uint64
	said    time.Time // when it was told what is left out
}

type kind struct {
	told    time.Time
	packets uint64 // since
}

// Saw takes note of a packet, and reports whether to tell of it now.
func (l *Log) Saw(k Kind, now time.Time) bool {
	if seen := l.kinds[k]; seen != nil {
		seen.packets++
		return false
	}
	if len(l.kinds) >= mostKinds || !l.may(now) {
		l.leftOut++
		return false
	}
	if l.kinds == nil {
		l.kinds = map[Kind]*kind{}
	}
	l.kinds[k] = &kind{told: now}
	return true
}

// may takes one line of the limit, if there is one.
func (l *Log) may(now time.Time) bool {
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

// Missed takes note of packets of which nothing is known.
func (l *Log) Missed(packets uint64) { l.leftOut += packets }

// Due is what is to be told now.
type Due struct {
	// Again are kinds that were told of, with the number of packets since.
	Again map[Kind]uint64
	// LeftOut is how many packets no line has told of.
	LeftOut uint64
}

// Due returns what is to be told now. A kind of which nothing came for a minute is forgotten.
func (l *Log) Due(now time.Time) Due {
	due := Due{Again: map[Kind]uint64{}}
	for _, k := range slices.Collect(maps.Keys(l.kinds)) {
		seen := l.kinds[k]
		switch {
		case now.Sub(seen.told) < every:
		case seen.packets == 0:
			delete(l.kinds, k)
		case l.may(now):
			due.Again[k] = seen.packets
			*seen = kind{told: now}
		default:
			l.leftOut += seen.packets
			delete(l.kinds, k)
		}
	}
	if l.leftOut > 0 && now.Sub(l.said) >= every {
		due.LeftOut, l.leftOut, l.said = l.leftOut, 0, now
	}
	return due
}
