package checks

import (
	"fmt"
	"slices"

	"github.com/fairlead-cni/fairlead/diagnose/report"
)

// Write writes the result as text.
func (r Result) Write(p *report.Printer) {
	rows := [][]string{{"CHECK", "RESULT"}}
	for _, c := range Checks() {
		if text := r.of(p, c); text != "" {
			rows = append(rows, []string{c, text})
		}
	}
	p.Table(rows...)
	for _, n := range r.NotKnown {
		p.Text("unknown: ", n)
	}
	p.Line("")
	for i, f := range r.Findings {
		f.Write(p, i+1, f.Check+": ")
	}
	switch {
	case len(r.Examined) == 0:
		p.Line("No check could run.")
	case len(r.Findings) == 0:
		p.Line("%s", p.Paint(report.Good, "No problems were found."))
	}
}

// of is the result of a check for the table; empty: it was not requested.
func (r Result) of(p *report.Printer, c string) string {
	for _, g := range r.NotExamined {
		if g.Check == c && g.Failed {
			return p.Paint(report.Middle, "check failed: ") + g.Why
		} else if g.Check == c {
			return "not examined: " + g.Why
		}
	}
	if !slices.Contains(r.Examined, c) {
		return ""
	}
	count, worst := 0, report.Healthy
	for _, f := range r.Findings {
		if f.Check == c {
			count++
			worst = max(worst, f.Severity)
		}
	}
	if count == 0 {
		return p.Paint(report.Good, "ok")
	}
	return p.Paint(worst.Colour(), fmt.Sprintf("%s, see below", report.Count(count, "1 finding", "%d findings")))
}
