package report

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestWhatCounts(t *testing.T) {
	for name, c := range map[string]struct {
		result           Result
		value, low, high float64
		met              string
	}{
		"ratio of medians": {Result{Ours: []float64{1, 2, 90}, Peer: []float64{4, 4, 30}, Target: AtMost(0.5)}, 0.5, 0.3, 2.5, "yes"},
		"too much":         {Result{Ours: []float64{3}, Peer: []float64{4}, Target: AtMost(0.5)}, 0.75, 0.75, 0.75, "no"},
		"at least":         {Result{Ours: []float64{9}, Peer: []float64{10}, Target: AtLeast(0.9)}, 0.9, 0.9, 0.9, "yes"},
		"too little":       {Result{Ours: []float64{8}, Peer: []float64{10}, Target: AtLeast(0.9)}, 0.8, 0.8, 0.8, "no"},
		"difference":       {Result{Ours: []float64{5}, Peer: []float64{2}, Difference: true, Target: AtMost(2)}, 3, 3, 3, "no"},
		"alone, none":      {Result{Ours: []float64{0, 0}, Target: AtMost(0)}, 0, 0, 0, "yes"},
		"worst":            {Result{Ours: []float64{0, 0, 1}, Worst: true, Target: AtMost(0)}, 1, 0, 1, "no"},
		"no target":        {Result{Ours: []float64{2, 4}}, 3, 2.2, 3.8, ""},
	} {
		r, err := newRow(c.result)
		if err != nil {
			t.Fatal(name, err)
		}
		for what, pair := range map[string][2]float64{"value": {r.Value, c.value}, "low": {r.Low, c.low}, "high": {r.High, c.high}} {
			if d := pair[0] - pair[1]; d > 1e-9 || d < -1e-9 {
				t.Errorf("%s: %s is %v, not %v", name, what, pair[0], pair[1])
			}
		}
		if r.Met != c.met {
			t.Errorf("%s: met is %q, not %q", name, r.Met, c.met)
		}
	}
	for _, c := range []struct {
		ours float64
		want string
	}{{1, "-2 (-2 to -2)"}, {5, "+2 (2 to 2)"}} {
		r, err := newRow(Result{Ours: []float64{c.ours}, Peer: []float64{3}, Difference: true})
		if got := r.cells()[4]; err != nil || got != c.want {
			t.Errorf("a difference is printed as %q, %v, want %q", got, err, c.want)
		}
	}
	if _, err := newRow(Result{Ours: []float64{1, 2}, Peer: []float64{1}}); err == nil {
		t.Error("samples that were not taken alternately are compared")
	}
	if _, err := newRow(Result{}); err == nil {
		t.Error("no samples give a row")
	}
}

// A repeated measurement replaces its row; all others stay.
func TestStored(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("FAIRLEAD_BENCH_OUT", dir)
	Add(t, Result{Group: "CNI", Name: "ADD", Unit: "ms", Ours: []float64{1}, Peer: []float64{2}, Against: "<bridge>", Target: AtMost(0.1)})
	Add(t, Result{Group: "scale", Name: "RSS", Unit: "MiB", Ours: []float64{30}, Target: AtMost(40)})
	Add(t, Result{Group: "CNI", Name: "DEL", Unit: "ms", Ours: []float64{3}, Note: "of one pod"})
	Add(t, Result{Group: "CNI", Name: "ADD", Unit: "ms", Ours: []float64{4}, Peer: []float64{2}, Against: "<bridge>", Target: AtMost(0.1)})
	AddCurve(t, Curve{Name: "memory", X: "Nodes", Y: "MiB", Lines: []Line{{"RSS & heap", [][2]float64{{100, 30}, {5000, 90}}}}})
	a, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, r := range a.Rows {
		names = append(names, r.Group+" "+r.Name)
	}
	if got := strings.Join(names, ", "); got != "CNI ADD, CNI DEL, scale RSS" || a.Rows[0].Value != 2 {
		t.Errorf("rows %s, the first with value %v", got, a.Rows[0].Value)
	}
	table := a.Table()
	for _, want := range []string{"ADD / <bridge>", "ratio 2", "CNI, DEL: of one pod", "1 of 2 targets are met"} {
		if !strings.Contains(table, want) {
			t.Errorf("the table lacks %q:\n%s", want, table)
		}
	}
	page := a.Markdown()
	for _, want := range []string{"1 of 2 targets are met", "## CNI", "| ADD | ms |", "**ratio 2 (2 to 2)**", "- DEL: of one pod"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
	for _, drawing := range []string{a.Ratios(), a.Curves[0].SVG()} {
		for d := xml.NewDecoder(strings.NewReader(drawing)); ; {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err, drawing)
			}
		}
	}
}
