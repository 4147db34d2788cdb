package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// headings are the column headings of Table.
func headings() []string {
	return []string{"", "unit", "ours: median (min, p95)", "the peer's", "what counts (8 of 10 rounds between)", "target", "met"}
}

// cells are a row's columns.
func (r Row) cells() []string {
	peer, counts, target := "-", "", "-"
	if r.PeerSummary != nil {
		peer = r.PeerSummary.String()
	}
	switch {
	case r.Worst:
		counts = "worst "
	case r.Peer != nil && r.Difference && r.Value < 0: // signed
	case r.Peer != nil && r.Difference:
		counts = "+"
	case r.Peer != nil:
		counts = "ratio "
	}
	counts += fmt.Sprintf("%s (%s to %s)", short(r.Value), short(r.Low), short(r.High))
	if r.Target.Bound != "" {
		target = fmt.Sprintf("%s %s", r.Target.Bound, short(r.Target.Limit))
	}
	return []string{r.Name, r.Unit, r.OursSummary.String(), peer, counts, target, r.Met}
}

func (s Summary) String() string {
	return fmt.Sprintf("%s (%s, %s)", short(s.Median), short(s.Min), short(s.P95))
}

// short formats three digits, or all digits of the integer part.
func short(v float64) string {
	if math.Abs(v) >= 100 || v == math.Trunc(v) {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	if math.Abs(v) >= 10 {
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// Table is all rows, aligned, under the headings of their groups, with the notes below.
func (a All) Table() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, strings.Join(headings(), "\t"))
	group := ""
	var notes []string
	for _, r := range a.Rows {
		if r.Group != group {
			group = r.Group
			fmt.Fprintf(w, "%s\t\t\t\t\t\t\n", group)
		}
		cells := r.cells()
		cells[0] = "  " + cells[0]
		if r.Against != "" {
			cells[0] += " / " + r.Against
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
		if r.Note != "" {
			notes = append(notes, fmt.Sprintf("%s, %s: %s", r.Group, r.Name, r.Note))
		}
	}
	_ = w.Flush() // a strings.Builder returns no errors
	if len(notes) > 0 {
		fmt.Fprintf(&b, "\n%s\n", strings.Join(notes, "\n"))
	}
	fmt.Fprintf(&b, "\n%s.\n", a.met())
	return b.String()
}

// met is the number of targets that are met.
func (a All) met() string {
	met, aimed := 0, 0
	for _, r := range a.Rows {
		if r.Met != "" {
			aimed++
		}
		if r.Met == "yes" {
			met++
		}
	}
	return fmt.Sprintf("%d of %d targets are met", met, aimed)
}

// period is the time span of the measurements, in UTC.
func (a All) period() (first, last time.Time) {
	for i, r := range a.Rows {
		if at := r.Taken.UTC(); i == 0 || at.Before(first) {
			first = at
		}
		if at := r.Taken.UTC(); at.After(last) {
			last = at
		}
	}
	return first, last
}
