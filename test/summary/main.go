// Command summary runs "go test" with its arguments and reports at the end what was not tested: every skipped test with
// its reason, and every failed one.
//
// go run ./test/summary [arguments of go test]
//
// Output of a test is shown when the test fails. The exit code is 1 if a test failed, or was skipped and ALLOW_SKIP is
// not 1: an unnoticed skip is a missing test. The lines of skipped and failed tests are appended to the file named by
// FAIRLEAD_TEST_TOLD, if set, so that a run of several commands can end with all of them.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
)

func main() {
	code, err := run(".", os.Args[1:], os.Getenv("ALLOW_SKIP") == "1", os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "summary:", err)
		code = 1
	}
	os.Exit(code)
}

// run runs "go test -json args" in dir, writes the report to out and returns the exit code.
func run(dir string, args []string, allowSkip bool, out io.Writer) (int, error) {
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Dir = dir
	cmd.Stderr = out
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return 1, err
	}
	if err := cmd.Start(); err != nil {
		return 1, fmt.Errorf("starting go test: %w", err)
	}
	r := newReport(out)
	for lines := bufio.NewReader(stdout); ; {
		line, err := lines.ReadBytes('\n')
		var e event
		switch {
		case len(line) == 0:
		case json.Unmarshal(line, &e) == nil && e.Action != "":
			r.add(e)
		default:
			fmt.Fprintf(out, "%s", line) // of go test itself, not an event
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 1, fmt.Errorf("reading the output of go test: %w", err)
		}
	}
	failed := cmd.Wait() != nil
	code := r.end(failed, allowSkip)
	return code, r.tell(os.Getenv("FAIRLEAD_TEST_TOLD"))
}

// tell appends the lines of skipped and failed tests to a file.
func (r *report) tell(path string) error {
	if path == "" || r.wrong() == "" {
		return nil
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.WriteString(r.wrong())
	return errors.Join(err, file.Close())
}
