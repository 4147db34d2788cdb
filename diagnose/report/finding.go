package report

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Severity is how bad a finding is.
type Severity int

// The severities, from good to bad. Warning: pods are served, but something is wrong or will be. Failing: some pods or
// a node are not served, or not properly.
const (
	Healthy Severity = iota
	Warning
	Failing
)

func (s Severity) String() string { return [...]string{"healthy", "warning", "failing"}[s] }

// MarshalJSON writes the name.
func (s Severity) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

// Colour is the severity's colour on a terminal.
func (s Severity) Colour() Colour { return [...]Colour{Good, Middle, Bad}[s] }

// Finding is one problem.
type Finding struct {
	// Check is what was examined, by its name on the command line.
	Check string `json:"check"`
	// Kind is a single word for programs.
	Kind     string   `json:"kind"`
	Severity Severity `json:"severity"`
	// About are the names of nodes, pools, addresses.
	About []string `json:"about,omitempty"`
	// Cause is one sentence or more.
	Cause string `json:"cause"`
	// Evidence is what was observed, and where.
	Evidence []string `json:"evidence,omitempty"`
	// Seen are Events, with counts and times: evidence that changes while the cause does not.
	Seen []string `json:"seen,omitempty"`
	// Remedies are alternatives, best first.
	Remedies []Remedy `json:"remedies,omitempty"`
	Notes    []string `json:"notes,omitempty"`
}

// Remedy is one way to fix the problem: a sentence in the imperative, shell commands or comments, and what it costs.
type Remedy struct {
	Text     string   `json:"text"`
	Commands []string `json:"commands,omitempty"`
	Beware   []string `json:"beware,omitempty"`
}

// Message is the finding in one line, for a log, an Event or a CNI error. It does not change as long as the cause does
// not.
func (f Finding) Message() string {
	parts := []string{sentence(f.Cause)}
	for i, r := range f.Remedies {
		text := r.Text
		if i > 0 {
			text = "Or: " + strings.ToLower(text[:1]) + text[1:]
		}
		parts = append(parts, sentence(text))
	}
	for _, n := range f.Notes {
		parts = append(parts, sentence(n))
	}
	if len(f.Evidence) > 0 {
		parts = append(parts, "("+sentence(strings.Join(f.Evidence, "; "))+")")
	}
	return strings.Join(parts, " ") + " See: fairleadctl doctor " + f.Check
}

func sentence(s string) string { return strings.TrimSuffix(s, ".") + "." }

// Write writes the finding as text; before precedes its kind.
func (f Finding) Write(p *Printer, number int, before string) {
	what := "Problem"
	if f.Severity == Warning {
		what = "Warning"
	}
	p.Line("%s", p.Paint(f.Severity.Colour(), fmt.Sprintf("%s %d: %s%s", what, number, before, f.Kind)))
	p.Text("  ", f.Cause)
	for _, e := range slices.Concat(f.Evidence, f.Seen) {
		p.Text("  evidence: ", e)
	}
	for i, r := range f.Remedies {
		label := "  remedy: "
		if i > 0 {
			label = "  or:     "
		}
		p.Text(label, r.Text)
		for _, c := range r.Commands {
			p.Line("      %s", c) // not wrapped, so that it can be copied
		}
		for _, b := range r.Beware {
			p.Text("    beware: ", b)
		}
	}
	for _, n := range f.Notes {
		p.Text("  note: ", n)
	}
	p.Line("")
}
