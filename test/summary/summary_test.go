package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A module of its own is tested by the real go test.
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
		{"a skip that is allowed", pass + "func TestRootX(t *testing.T) { t.Skip(\"needs root\") }\n", true, 0,
			[]string{"SKIPPED example TestRootX:"}, []string{"ALLOW_SKIP=1"}},
		{"a subtest fails", "func TestA(t *testing.T) { t.Run(\"sub\", func(t *testing.T) { t.Error(\"got 1\") }) }\n", true, 1,
			[]string{"got 1", "--- FAIL: TestA/sub", "FAILED  example TestA/sub", "FAIL  example"}, []string{"=== RUN"}},
		{"a panic", "func TestA(t *testing.T) { panic(\"ouch\") }\n", true, 1, []string{"ouch", "FAILED  example TestA"}, nil},
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
			var out strings.Builder
			exit, err := run(dir, nil, []string{"./..."}, c.allowSkip, &out)
			if err != nil || exit != c.exit {
				t.Errorf("exit code %d, error %v, want %d", exit, err, c.exit)
			}
			for _, s := range c.want {
				if !strings.Contains(out.String(), s) {
					t.Errorf("%q is missing in the output", s)
				}
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

// Packages that are first and all the others are tested at the same time, each once, and what fails of either counts.
// The others are in a session of their own, at a low rate.
func TestFirst(t *testing.T) {
	const meet = `package %[1]s

import (
	"os"
	"syscall"
	"testing"
	"time"
)

func TestMeet(t *testing.T) {
	priority, err := syscall.Getpriority(syscall.PRIO_PROCESS, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("../%[1]s.here", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat("../%[2]s.here"); err == nil {
			t.Fatalf("met with niceness %%d", 20-priority)
		}
	}
}
`
	priority, err := syscall.Getpriority(syscall.PRIO_PROCESS, 0)
	if err != nil {
		t.Fatal(err)
	}
	own := 20 - priority // the system call's way to tell it
	dir := t.TempDir()
	write(t, filepath.Join(dir, "go.mod"), "module example\n\ngo 1.26\n")
	for name, other := range map[string]string{"quick": "late", "late": "quick"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name, "x_test.go"), fmt.Sprintf(meet, name, other))
	}
	var out strings.Builder
	exit, err := run(dir, []string{"./quick"}, []string{"-p", "1", "-run", "Meet", "./..."}, false, &out)
	if err != nil || exit != 1 {
		t.Errorf("exit code %d, error %v, want 1", exit, err)
	}
	for _, want := range []string{"0 passed, 0 skipped, 2 failed", fmt.Sprintf("met with niceness %d\n", own),
		fmt.Sprintf("met with niceness %d\n", own+low)} {
		if strings.Count(out.String(), want) != 1 {
			t.Errorf("want %q once in\n%s", want, &out)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
