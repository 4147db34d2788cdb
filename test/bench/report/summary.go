package report

import "slices"

// Summary are the statistics of samples that a table shows.
type Summary struct {
	Rounds           int
	Min, Median, P95 float64
}

func summarize(samples []float64) Summary {
	s := slices.Sorted(slices.Values(samples))
	return Summary{Rounds: len(s), Min: s[0], Median: quantile(s, 0.5), P95: quantile(s, 0.95)}
}

// Median of samples, for a point of a Curve.
func Median(samples []float64) float64 { return summarize(samples).Median }

// quantile of sorted samples: with part 0.5 the median. Between two samples it is interpolated linearly.
func quantile(sorted []float64, part float64) float64 {
	at := part * float64(len(sorted)-1)
	i := int(at)
	if i+1 == len(sorted) {
		return sorted[i]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}

// value is the value from the medians, and the range of eight of ten rounds.
func (r Result) value() (value, low, high float64) {
	if r.Worst {
		return slices.Max(r.Ours), slices.Min(r.Ours), slices.Max(r.Ours)
	}
	compare := func(ours, _ float64) float64 { return ours }
	switch {
	case r.Peer != nil && r.Difference:
		compare = func(ours, peer float64) float64 { return ours - peer }
	case r.Peer != nil:
		compare = func(ours, peer float64) float64 { return ours / peer }
	}
	each := make([]float64, len(r.Ours))
	theirs := 0.0
	for i, ours := range r.Ours {
		if r.Peer == nil {
			each[i] = ours
		} else {
			each[i] = compare(ours, r.Peer[i])
		}
	}
	if r.Peer != nil {
		theirs = summarize(r.Peer).Median
	}
	slices.Sort(each)
	return compare(summarize(r.Ours).Median, theirs), quantile(each, 0.1), quantile(each, 0.9)
}
