package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// event is one line of "go test -json" (go doc test2json).
type event struct {
	Action  string
	Package string
	Test    string
	Elapsed float64 // seconds
	Output  string
}

// test identifies a test; its name is empty for the package itself.
type test struct{ pkg, name string }

// outcome is a test that was skipped or failed, and why it was skipped or what it first said.
type outcome struct {
	test
	reason string
}

// report collects events and writes the output of failures.
type report struct {
	out    io.Writer
	output map[test][]string // of running tests
	passed int
	// elsewhere counts tests that run only in another pass.
	elsewhere int
	skipped   []outcome
	failed    []outcome
	timed     []timed
}

func newReport(out io.Writer) *report {
	return &report{out: out, output: map[test][]string{}}
}

func (r *report) add(e event) {
	t := test{e.Package, e.Test}
	switch e.Action {
	case "output":
		r.output[t] = append(r.output[t], e.Output)
		return
	case "build-output":
		fmt.Fprint(r.out, e.Output)
		return
	case "pass":
		if e.Test != "" {
			r.passed++
		} else {
			fmt.Fprintf(r.out, "ok    %s %.1fs\n", e.Package, e.Elapsed)
		}
	case "skip":
		switch why := reason(r.output[t]); {
		case e.Test == "":
		case strings.Contains(why, ovstest.ElsewhereMark):
			r.elsewhere++
		default:
			r.skipped = append(r.skipped, outcome{t, why})
		}
	case "fail":
		if e.Test != "" {
			r.failed = append(r.failed, outcome{t, firstSaid(r.output[t])})
		} else {
			r.unfinished(e.Package)
		}
		r.print(t)
		if e.Test == "" {
			fmt.Fprintf(r.out, "FAIL  %s %.1fs\n", e.Package, e.Elapsed)
		}
	default:
		return
	}
	if e.Test != "" {
		r.timed = append(r.timed, timed{t, e.Elapsed})
	}
	delete(r.output, t)
}

// unfinished reports the tests of a package that were running when it ended: a panic or a time-out has no event of its
// own.
func (r *report) unfinished(pkg string) {
	for t := range r.output {
		if t.pkg == pkg && t.name != "" {
			r.failed = append(r.failed, outcome{t, firstSaid(r.output[t])})
			r.print(t)
			delete(r.output, t)
		}
	}
}

func (r *report) print(t test) {
	for _, line := range r.output[t] {
		if !isFrame(line) {
			fmt.Fprint(r.out, line)
		}
	}
}

// isFrame reports whether line says only that a test runs, or that a package has failed, which this report prints
// itself.
func isFrame(line string) bool {
	return strings.HasPrefix(line, "=== ") || line == "FAIL\n" || strings.HasPrefix(line, "FAIL\t")
}

// reason is the message of a skipped test, in one line.
func reason(output []string) string {
	var said []string
	for _, line := range output {
		line = strings.TrimSpace(line)
		if line != "" && !isFrame(line) && !strings.HasPrefix(line, "--- SKIP") {
			said = append(said, line)
		}
	}
	if len(said) == 0 {
		return "no reason given"
	}
	return strings.Join(said, " ")
}

// told is how many bytes of a failed test's messages the summary repeats.
const told = 400

// firstSaid is the beginning of what a failed test said, in one line; empty for a parent of failed subtests.
func firstSaid(output []string) string {
	var said []string
	for _, line := range output {
		if line = strings.TrimSpace(line); line != "" && !isFrame(line) && !strings.HasPrefix(line, "--- ") {
			said = append(said, line)
		}
	}
	text := strings.Join(said, " ")
	return text[:min(told, len(text))]
}

// end writes the summary and returns the exit code. failed is the result of go test.
func (r *report) end(failed, allowSkip bool) int {
	r.tellSlowest()
	fmt.Fprintf(r.out, "\n%d passed, %d skipped, %d failed\n", r.passed, len(r.skipped), len(r.failed))
	if r.elsewhere > 0 {
		fmt.Fprintf(r.out, "%d only for another pass\n", r.elsewhere)
	}
	fmt.Fprint(r.out, r.wrong())
	switch {
	case failed || len(r.failed) > 0:
		return 1
	case len(r.skipped) > 0 && !allowSkip:
		fmt.Fprintln(r.out, "A skip counts as a failure here. ALLOW_SKIP=1 accepts it.")
		return 1
	}
	return 0
}

// wrong is a line for each test that was skipped or failed.
func (r *report) wrong() string {
	var lines strings.Builder
	for _, o := range r.skipped {
		fmt.Fprintf(&lines, "SKIPPED %s %s: %s\n", o.pkg, o.name, o.reason)
	}
	for _, o := range r.failed {
		fmt.Fprintf(&lines, "FAILED  %s %s: %s\n", o.pkg, o.name, o.reason)
	}
	return lines.String()
}
