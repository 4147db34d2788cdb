package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Ginkgo's report of tests that passed, failed, skipped themselves or were not selected.
const report = `[{"SuiteDescription": "Kubernetes e2e suite", "SpecReports": [
 {"LeafNodeType": "SynchronizedBeforeSuite", "State": "passed"},
 {"ContainerHierarchyTexts": ["[sig-network] Services"], "LeafNodeType": "It", "LeafNodeText": "serve", "State": "passed", "RunTime": 2500000000},
 {"ContainerHierarchyTexts": ["[sig-network] DNS"], "LeafNodeType": "It", "LeafNodeText": "answers", "State": "failed", "RunTime": 61000000000,
  "Failure": {"Message": "no answer\nfrom 10.96.0.10"}},
 {"ContainerHierarchyTexts": ["[sig-network] SCTP"], "LeafNodeType": "It", "LeafNodeText": "talks", "State": "skipped",
  "Failure": {"Message": "no module sctp"}},
 {"ContainerHierarchyTexts": ["[sig-storage] Disks"], "LeafNodeType": "It", "LeafNodeText": "spin", "State": "skipped", "Failure": {"Message": ""}}
]}]`

func readAll(t *testing.T, content string) []result {
	t.Helper()
	path := filepath.Join(t.TempDir(), "report.json")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	results, err := readReport(path)
	if err != nil {
		t.Fatal(err)
	}
	return results
}

// The table has every selected test, and the reason of each that did not pass.
func TestTable(t *testing.T) {
	var out strings.Builder
	if printTable(&out, "conformance", readAll(t, report), 90*time.Second) {
		t.Error("a table with a failure counts as passed")
	}
	for _, want := range []string{
		"  passed      2.5 s  [sig-network] Services serve\n",
		"  failed     61.0 s  [sig-network] DNS answers\n",
		"  FAILED: [sig-network] DNS answers\n    no answer\n    from 10.96.0.10\n",
		"  SKIPPED: [sig-network] SCTP talks\n    no module sctp\n",
		"conformance: 1 of 3 passed, 1 failed, 1 skipped, in 1m30s\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, &out)
		}
	}
	if strings.Contains(out.String(), "Disks") {
		t.Errorf("a test that was not selected is in:\n%s", &out)
	}
}

// A run passes only if tests ran and all of them passed.
func TestPassed(t *testing.T) {
	for _, c := range []struct {
		name, state string
		want        bool
	}{
		{"passed", `{"LeafNodeType": "It", "State": "passed"}`, true},
		{"failed", `{"LeafNodeType": "It", "State": "failed"}`, false},
		{"timed out", `{"LeafNodeType": "It", "State": "timedout"}`, false},
		{"skipped itself", `{"LeafNodeType": "It", "State": "skipped", "Failure": {"Message": "not here"}}`, false},
		{"nothing selected", `{"LeafNodeType": "It", "State": "skipped"}`, false},
		{"no nodes", `{"LeafNodeType": "It", "State": "passed"}, {"LeafNodeType": "SynchronizedBeforeSuite", "State": "failed",
			"Failure": {"Message": "no nodes"}}`, false},
	} {
		results := readAll(t, `[{"SpecReports": [`+c.state+`]}]`)
		if got := printTable(&strings.Builder{}, "set", results, 0); got != c.want {
			t.Errorf("%s: %t, want %t", c.name, got, c.want)
		}
	}
}

// For a test with subtests, the output of "go test -v" yields one result for each subtest.
func TestGoResults(t *testing.T) {
	got := goResults("=== RUN   TestConformance\n--- FAIL: TestConformance (3.50s)\n" +
		"    --- PASS: TestConformance/A (1.00s)\n        --- PASS: TestConformance/A/allows_it (1.00s)\n" +
		"    --- FAIL: TestConformance/AB (2.50s)\n        --- FAIL: TestConformance/AB/denies_it (2.50s)\n" +
		"    --- SKIP: TestConformance/C (0.00s)\n")
	want := []result{{name: "A/allows it", state: "passed", took: time.Second, why: "see the log"},
		{name: "AB/denies it", state: "failed", took: 2500 * time.Millisecond, why: "see the log"},
		{name: "C", state: "skipped", why: "see the log"}}
	if !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// Each line of cyclonus' report is one result.
func TestCyclonusResults(t *testing.T) {
	got, err := cyclonusResults(`{"Name":"pod-ip #1 set namespace to x","Passed":true,"Took":2000000000,"Why":""}
{"Name":"pod-ip #2 set namespace to y","Passed":false,"Took":1000000000,"Why":"step 1: y/a to x/a TCP/80: allowed, want blocked"}
`)
	want := []result{{name: "pod-ip #1 set namespace to x", state: "passed", took: 2 * time.Second},
		{name: "pod-ip #2 set namespace to y", state: "failed", took: time.Second,
			why: "step 1: y/a to x/a TCP/80: allowed, want blocked"}}
	if !slices.Equal(got, want) || err != nil {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	if got, err := cyclonusResults(`{"Name":"pod-ip #1 set`); err == nil {
		t.Errorf("a line that is cut off: %+v", got)
	}
}
