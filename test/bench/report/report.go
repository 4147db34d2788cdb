package report

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// Result is one row: a quantity that was measured several times. A field's zero value means none.
type Result struct {
	// Group is the heading above the row. Group and Name identify it.
	Group string
	Name  string
	// Unit is the unit of all samples: ms, MiB, packets.
	Unit string
	// Ours are the samples, in order of measurement.
	Ours []float64
	// Peer are the samples of the peer, which Against names; Peer[i] is measured beside Ours[i].
	Peer    []float64
	Against string
	// Difference selects ours minus the peer's as the value, in Unit. Otherwise it is the ratio of the medians, or
	// without Peer the median.
	Difference bool
	// Worst selects the largest sample of ours as the value, for what must never happen. Peer, if any, is only shown.
	Worst bool
	// Target is the target of the value.
	Target Target
	// Note explains the numbers.
	Note string
}

// Target is a limit. The zero value is none.
type Target struct {
	Limit float64
	Bound Bound
}

// Bound is the side of a limit.
type Bound string

// The bounds of a Target.
const (
	Most  Bound = "at most"
	Least Bound = "at least"
)

// AtMost is the target that the value is at most the limit.
func AtMost(limit float64) Target { return Target{limit, Most} }

// AtLeast is the target that the value is at least the limit.
func AtLeast(limit float64) Target { return Target{limit, Least} }

// met is whether value meets the target, and "" without one.
func (t Target) met(value float64) string {
	switch {
	case t.Bound == "":
		return ""
	case t.Bound == Most && value <= t.Limit, t.Bound == Least && value >= t.Limit:
		return "yes"
	default:
		return "no"
	}
}

// Curve is one plot: how quantities (Y, with their unit) depend on another one (X).
type Curve struct {
	Name  string
	X, Y  string
	Lines []Line
}

// Line is one line of a plot. Points are pairs of x and y, by x.
type Line struct {
	Name   string
	Points [][2]float64
}

// Row is a Result as it is stored, with the values computed from its samples.
type Row struct {
	Result
	OursSummary Summary
	PeerSummary *Summary `json:",omitempty"`
	// Low and High are the first and the last decile of the rounds.
	Value, Low, High float64
	// Met is yes, no, or empty without a target.
	Met string `json:",omitempty"`
	// Taken is the time of the measurement, and Load the machine's load average of the last minute then: a measure of
	// reliability.
	Taken time.Time
	Load  string
}

// Add stores a result, and logs it. Samples that cannot be compared fail the benchmark, as does an error writing the
// file.
func Add(tb testing.TB, r Result) {
	tb.Helper()
	row, err := newRow(r)
	if err == nil {
		err = change(func(a *All) { a.addRow(row) })
	}
	if err != nil {
		tb.Fatalf("the result %s, %s: %v", r.Group, r.Name, err)
	}
	tb.Logf("%s, %s: %s", r.Group, r.Name, strings.Join(row.cells()[1:], "  "))
}

// AddCurve stores a plot.
func AddCurve(tb testing.TB, c Curve) {
	tb.Helper()
	if err := change(func(a *All) { a.addCurve(c) }); err != nil {
		tb.Fatalf("the curve %s: %v", c.Name, err)
	}
}

func newRow(r Result) (Row, error) {
	row := Row{Result: r, Taken: time.Now(), Load: load()}
	if len(r.Ours) == 0 {
		return row, fmt.Errorf("no samples")
	}
	if r.Peer != nil && len(r.Peer) != len(r.Ours) {
		return row, fmt.Errorf("%d samples of ours and %d of the peer: they must alternate", len(r.Ours), len(r.Peer))
	}
	row.OursSummary = summarize(r.Ours)
	if r.Peer != nil {
		s := summarize(r.Peer)
		row.PeerSummary = &s
	}
	row.Value, row.Low, row.High = r.value()
	row.Met = r.Target.met(row.Value)
	return row, nil
}

// load is the load average of the last minute.
func load() string {
	text, _ := os.ReadFile("/proc/loadavg") // missing: unknown
	first, _, _ := strings.Cut(string(text), " ")
	return first
}
