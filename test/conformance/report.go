package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

// result is the result of one test.
type result struct {
	name, state string // state in Ginkgo's terms: passed, failed, skipped, timedout, panicked, …
	took        time.Duration
	why         string // of a failure, or of a test that skipped itself
}

// readReport reads the results of the selected tests from Ginkgo's report.
func readReport(path string) ([]result, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var suites []struct {
		SpecReports []struct {
			ContainerHierarchyTexts           []string
			LeafNodeType, LeafNodeText, State string
			RunTime                           time.Duration
			Failure                           struct{ Message string }
			AdditionalFailures                []struct{ Failure struct{ Message string } }
			NumAttempts                       int
		}
	}
	if err := json.Unmarshal(data, &suites); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var results []result
	for _, suite := range suites {
		for _, spec := range suite.SpecReports {
			test := spec.LeafNodeType == "It"
			notSelected := test && spec.State == "skipped" && spec.Failure.Message == ""
			setUp := !test && spec.State == "passed"
			if notSelected || setUp {
				continue
			}
			name := strings.Join(append(spec.ContainerHierarchyTexts, spec.LeafNodeText), " ")
			if !test {
				name = strings.TrimSpace("(" + spec.LeafNodeType + ") " + name)
			}
			results = append(results, result{name: name, state: spec.State, took: spec.RunTime, why: spec.Failure.Message})
		}
	}
	slices.SortFunc(results, func(a, b result) int { return strings.Compare(a.name, b.name) })
	return results, nil
}

// printTable prints results, and below it what failed, with the test's own message. It reports whether there were tests
// and all of them passed.
func printTable(w io.Writer, title string, results []result, took time.Duration) bool {
	counts := map[string]int{}
	fmt.Fprintf(w, "\n%s\n", title)
	for _, r := range results {
		counts[r.state]++
		fmt.Fprintf(w, "  %-8s %6.1f s  %s\n", r.state, r.took.Seconds(), r.name)
	}
	for _, r := range results {
		if r.state != "passed" {
			fmt.Fprintf(w, "\n  %s: %s\n    %s\n", strings.ToUpper(r.state), r.name, strings.ReplaceAll(strings.TrimSpace(r.why), "\n", "\n    "))
		}
	}
	passed := counts["passed"]
	delete(counts, "passed")
	others := ""
	for _, state := range slices.Sorted(maps.Keys(counts)) {
		others += fmt.Sprintf(", %d %s", counts[state], state)
	}
	fmt.Fprintf(w, "\n%s: %d of %d passed%s, in %s\n", title, passed, len(results), others, took.Round(time.Second))
	return passed == len(results) && passed > 0
}
