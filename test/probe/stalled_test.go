package probe

import (
	"testing"
	"time"
)

func TestExcused(t *testing.T) {
	report := func(lost int, gap time.Duration) []Report {
		return []Report{{LongestGap: time.Millisecond}, {Lost: lost, LongestGap: gap * time.Millisecond}}
	}
	for _, c := range []struct {
		name              string
		streams, controls []Report
		want              bool
	}{
		{"no controls", report(1, 200), nil, false},
		{"the controls went on", report(12, 153), report(0, 20), false},
		{"they paused, and much less", report(200, 1000), report(0, 118), false},
		{"a pause that fills no queue", report(2, 30), report(0, 40), false},
		{"all stood still", report(12, 153), report(0, 118), true},
		{"the controls lost as well", report(12, 153), report(1, 20), true},
	} {
		if got := Excused(c.streams, c.controls); got != c.want {
			t.Errorf("%s: %t", c.name, got)
		}
	}
}
