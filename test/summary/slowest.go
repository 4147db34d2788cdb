package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// timed is a test, with or without subtests, and its duration in seconds.
type timed struct {
	test
	seconds float64
}

// shown is the number of slowest tests in the report, and slow their minimum in seconds.
const (
	shown = 12
	slow  = 10
)

// slowest are the tests that took longest, the slowest first. Subtests are included in their parents.
func slowest(all []timed) []timed {
	var out []timed
	for _, t := range all {
		if t.seconds >= slow && !strings.Contains(t.name, "/") {
			out = append(out, t)
		}
	}
	slices.SortStableFunc(out, func(a, b timed) int { return cmp.Compare(b.seconds, a.seconds) })
	return out[:min(shown, len(out))]
}

// tellSlowest reports the slowest tests: the candidates for a faster run.
func (r *report) tellSlowest() {
	for _, t := range slowest(r.timed) {
		fmt.Fprintf(r.out, "slow    %s %s %.1fs\n", t.pkg, t.name, t.seconds)
	}
}
