// Package forecast predicts from the past usage of pools when they will be exhausted. It has no side effects.
package forecast

import (
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/api"
)

// A pool's usage is sampled every growthStep and kept for growthLong. growthShort is the other span over which growth
// is measured: a rollout fills a pool in minutes, which the last hour would not show.
const (
	growthStep  = 10 * time.Second
	growthShort = 5 * time.Minute
	growthLong  = time.Hour
)

// UsedAt is how many addresses of a pool were in use at a time.
type UsedAt struct {
	At   time.Time
	Used int64
}

// Growth is the usage history of pools, oldest first. A controller that has just started has little of it, and
// forecasts nothing for a minute.
type Growth map[string][]UsedAt

// Record records the current usage. Pools that are gone are dropped.
func (g Growth) Record(now time.Time, reports map[string]api.IPPoolStatus) {
	for name := range g {
		if _, there := reports[name]; !there {
			delete(g, name)
		}
	}
	for name, s := range reports {
		seen := g[name]
		if len(seen) > 0 && now.Sub(seen[len(seen)-1].At) < growthStep {
			continue
		}
		old := slices.IndexFunc(seen, func(u UsedAt) bool { return now.Sub(u.At) <= growthLong })
		g[name] = append(seen[max(old, 0):], UsedAt{now, s.Usage.Used})
	}
}

// FullIn returns when a pool with so many addresses left will be exhausted if it keeps growing as in the last hour or
// in the last minutes, whichever is sooner. It returns false if that is unknown, or never.
func (g Growth) FullIn(name string, left int64) (time.Duration, bool) {
	seen := g[name]
	if len(seen) == 0 || left <= 0 {
		return 0, false
	}
	last := seen[len(seen)-1]
	soonest, found := time.Duration(0), false
	for _, span := range []time.Duration{growthShort, growthLong} {
		first := seen[slices.IndexFunc(seen, func(u UsedAt) bool { return last.At.Sub(u.At) <= span })]
		more, took := last.Used-first.Used, last.At.Sub(first.At)
		if took < time.Minute || more <= 0 {
			continue
		}
		if in := time.Duration(float64(took) / float64(more) * float64(left)); !found || in < soonest {
			soonest, found = in, true
		}
	}
	return soonest, found
}

// Soon returns a duration in words, as coarse as a forecast is: it is part of a status, which is written whenever it
// changes. It is empty if it is too long to matter.
func Soon(in time.Duration) string {
	for _, step := range []struct {
		most time.Duration
		text string
	}{{10 * time.Minute, "10 minutes"}, {time.Hour, "an hour"}, {6 * time.Hour, "6 hours"}, {24 * time.Hour, "a day"},
		{7 * 24 * time.Hour, "a week"}} {
		if in <= step.most {
			return step.text
		}
	}
	return ""
}
