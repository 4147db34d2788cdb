package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// timed is a test with subtests or without, and how long it took, in seconds.
type timed struct {
	test
	seconds float64
}

// shown is how many of the slowest tests are told, and slow from how many seconds on.
const (
	shown = 12
	slow  = 10
)

// slowest are the tests that took longest, the worst first. Subtests count as part of theirs.
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

// tellSlowest says where the time went: who wants a faster run begins there.
func (r *report) tellSlowest() {
	for _, t := range slowest(r.timed) {
		fmt.Fprintf(r.out, "slow    %s %s %.1fs\n", t.pkg, t.name, t.seconds)
	}
}
