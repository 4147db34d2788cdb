package checks

import (
	"fmt"

	"github.com/fairlead-cni/fairlead/diagnose/report"
)

func (s Severity) colour() report.Colour {
	return [...]report.Colour{report.Good, report.Middle, report.Bad}[s]
}

// Write writes the result for people.
func (r Result) Write(p *report.Printer) {
	rows := [][]string{{"CHECK", "RESULT"}}
	for _, c := range Checks() {
		if text := r.of(p, c); text != "" {
			rows = append(rows, []string{string(c), text})
		}
	}
	p.Table(rows...)
	for _, n := range r.NotKnown {
		p.Text("unknown: ", n)
	}
	p.Line("")
	for i, f := range r.Findings {
		f.write(p, i+1, string(f.Check)+": ")
	}
	switch {
	case len(r.Examined) == 0:
		p.Line("No check could run.")
	case len(r.Findings) == 0:
		p.Line("%s", p.Paint(report.Good, "No problems were found."))
	}
}

// of is the table's text about a check; empty: it was not asked for.
func (r Result) of(p *report.Printer, c Check) string {
	for _, g := range r.NotExamined {
		if g.Check == c && g.Failed {
			return p.Paint(report.Middle, "check failed: ") + g.Why
		} else if g.Check == c {
			return "not examined: " + g.Why
		}
	}
	asked := false
	for _, e := range r.Examined {
		asked = asked || e == c
	}
	if !asked {
		return ""
	}
	count, worst := 0, Healthy
	for _, f := range r.Findings {
		if f.Check == c {
			count++
			worst = max(worst, f.Severity)
		}
	}
	if count == 0 {
		return p.Paint(report.Good, "ok")
	}
	return p.Paint(worst.colour(), fmt.Sprintf("%s, see below", number(count, "1 finding", "%d findings")))
}

// write writes one finding; before stands before its kind.
func (f Finding) write(p *report.Printer, number int, before string) {
	what := "Problem"
	if f.Severity == Warning {
		what = "Warning"
	}
	p.Line("%s", p.Paint(f.Severity.colour(), fmt.Sprintf("%s %d: %s%s", what, number, before, f.Kind)))
	p.Text("  ", f.Cause)
	for _, e := range f.Evidence {
		p.Text("  evidence: ", e)
	}
	for i, r := range f.Remedies {
		r.write(p, i)
	}
	for _, n := range f.Notes {
		p.Text("  note: ", n)
	}
	p.Line("")
}

func (r Remedy) write(p *report.Printer, i int) {
	label := "  remedy: "
	if i > 0 {
		label = "  or:     "
	}
	p.Text(label, r.Text)
	for _, c := range r.Commands {
		p.Line("      %s", c) // not broken: it is to be copied
	}
	for _, b := range r.Beware {
		p.Text("    beware: ", b)
	}
}
