package forecast

import (
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/api"
)

func TestForecast(t *testing.T) {
	start := time.Unix(1000000, 0)
	for name, c := range map[string]struct {
		used func(minute int) int64
		most int // minutes
		left int64
		want time.Duration // 0: unknown
	}{
		"begun":                {func(int) int64 { return 5 }, 0, 10, 0},
		"steady":               {func(int) int64 { return 5 }, 30, 10, 0},
		"shrinks":              {func(m int) int64 { return int64(100 - m) }, 30, 10, 0},
		"one a minute":         {func(m int) int64 { return int64(m) }, 30, 90, 90 * time.Minute},
		"one a minute, days":   {func(m int) int64 { return int64(m) }, 3000, 90, 90 * time.Minute},
		"a rollout just now":   {func(m int) int64 { return int64(max(0, m-55) * 20) }, 60, 200, 10 * time.Minute},
		"a rollout long over":  {func(m int) int64 { return int64(min(m, 20) * 20) }, 120, 200, 0},
		"a rollout, then none": {func(m int) int64 { return int64(min(m, 30)) }, 60, 30, time.Hour},
		"full":                 {func(m int) int64 { return int64(m) }, 30, 0, 0},
	} {
		g := Growth{}
		for m := range c.most + 1 {
			for s := 0; s < 60; s += 5 {
				g.Record(start.Add(time.Duration(m)*time.Minute+time.Duration(s)*time.Second),
					map[string]api.IPPoolStatus{"p": {Usage: &api.PoolUsage{Used: c.used(m)}}})
				if m == c.most {
					break
				}
			}
		}
		got, known := g.FullIn("p", c.left)
		if known != (c.want != 0) || got.Round(time.Minute) != c.want {
			t.Errorf("%s: full in %s, %v; want %s", name, got, known, c.want)
		}
		if len(g["p"]) > 362 {
			t.Errorf("%s: %d values are kept", name, len(g["p"]))
		}
		if g.Record(start, nil); len(g) > 0 {
			t.Errorf("%s: a pool that is gone is remembered", name)
		}
	}
}
