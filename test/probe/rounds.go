package probe

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Rounds are the losses of the same streams over repetitions of an event.
type Rounds struct {
	outages, gaps []time.Duration // of the worst stream of each round
	lost          []int           // by all streams
	sent          int             // in the last round
}

// Add adds the reports of one round.
func (r *Rounds) Add(reports []Report) {
	var worst Report
	for _, p := range reports {
		worst.Outage, worst.LongestGap = max(worst.Outage, p.Outage), max(worst.LongestGap, p.LongestGap)
		worst.Lost, worst.Sent = worst.Lost+p.Lost, worst.Sent+p.Sent
	}
	r.outages, r.gaps = append(r.outages, worst.Outage), append(r.gaps, worst.LongestGap)
	r.lost, r.sent = append(r.lost, worst.Lost), worst.Sent
}

// String has medians, with minimum and maximum in brackets.
func (r *Rounds) String() string {
	return fmt.Sprintf("outage %s ms, longest gap %s ms, lost %s of %d", spread(milliseconds(r.outages)),
		spread(milliseconds(r.gaps)), spread(r.lost), r.sent)
}

// Spread is the median of times in milliseconds, with minimum and maximum in brackets.
func Spread(times []time.Duration) string { return spread(milliseconds(times)) + " ms" }

func milliseconds(times []time.Duration) (ms []int) {
	for _, t := range times {
		ms = append(ms, int(t.Milliseconds()))
	}
	return ms
}

func spread[T cmp.Ordered](values []T) string {
	s := slices.Sorted(slices.Values(values))
	if len(s) == 0 {
		return "-"
	}
	return fmt.Sprintf("%v (%v to %v)", s[len(s)/2], s[0], s[len(s)-1])
}
