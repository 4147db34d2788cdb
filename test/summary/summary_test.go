package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// The real go test runs a module that the test writes.
func TestSummary(t *testing.T) {
	const pass = "func TestPass(t *testing.T) { t.Log(\"quiet\") }\n"
	for _, c := range []struct {
		name, code string
		allowSkip  bool
		exit       int
		want, not  []string
	}{
		{"all pass", pass, false, 0, []string{"ok    example", "1 passed, 0 skipped, 0 failed"}, []string{"quiet"}},
		{"a skip", pass + "func TestRootX(t *testing.T) { t.Skip(\"needs root\") }\n", false, 1,
			[]string{"1 passed, 1 skipped, 0 failed", "SKIPPED example TestRootX:", "needs root", "ALLOW_SKIP=1"}, nil},
		{"a test for another pass", pass + "func TestRootX(t *testing.T) { t.Skip(\"" + ovstest.ElsewhereMark + "why\") }\n", false, 0,
			[]string{"1 passed, 0 skipped, 0 failed", "1 only for another pass"}, []string{"SKIPPED"}},
		{"a skip that is allowed", pass + "func TestRootX(t *testing.T) { t.Skip(\"needs root\") }\n", true, 0,
			[]string{"SKIPPED example TestRootX:"}, []string{"ALLOW_SKIP=1"}},
		{"a subtest fails", "func TestA(t *testing.T) { t.Run(\"sub\", func(t *testing.T) { t.Error(\"got 1\") }) }\n", true, 1,
			[]string{"got 1", "--- FAIL: TestA/sub", "FAILED  example TestA/sub: x_test.go:", "FAIL  example"}, []string{"=== RUN"}},
		{"a panic", "func TestA(t *testing.T) { panic(\"ouch\") }\n", true, 1, []string{"ouch", "FAILED  example TestA: panic: ouch"}, nil},
		{"an exit", "func TestA(t *testing.T) { println(\"bye\"); os.Exit(3) }\n", true, 1,
			[]string{"bye", "FAILED  example TestA"}, nil},
		{"does not build", "func TestA(t *testing.T) { undefined() }\n", true, 1,
			[]string{"undefined: undefined", "FAIL  example"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, filepath.Join(dir, "go.mod"), "module example\n\ngo 1.26\n")
			write(t, filepath.Join(dir, "x_test.go"),
				"package x\n\nimport (\n\t\"os\"\n\t\"testing\"\n)\n\nvar _ = os.Exit\n\n"+c.code)
			told := filepath.Join(dir, "told")
			t.Setenv("FAIRLEAD_TEST_TOLD", told)
			var out strings.Builder
			exit, err := run(dir, []string{"./..."}, c.allowSkip, &out)
			if err != nil || exit != c.exit {
				t.Errorf("exit code %d, error %v, want %d", exit, err, c.exit)
			}
			for _, s := range c.want {
				if !strings.Contains(out.String(), s) {
					t.Errorf("%q is missing in the output", s)
				}
			}
			if text, err := os.ReadFile(told); strings.Contains(out.String(), "FAILED  ") != strings.Contains(string(text), "FAILED  ") {
				t.Errorf("the file of failures has %q (%v)", text, err)
			}
			for _, s := range c.not {
				if strings.Contains(out.String(), s) {
					t.Errorf("%q is in the output", s)
				}
			}
			if t.Failed() {
				t.Log(out.String())
			}
		})
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
