// Command summary runs "go test" with the given arguments and tells at the end
// what was not tested: every skipped test with its reason, and every failed one.
//
//	go run ./test/summary [-first PACKAGES] [arguments of go test]
//
// With -first, "go test" runs twice at the same time: for these packages, and with
// what processors they leave for all the others that the last argument names.
//
// Output of a test is shown when the test fails. The exit code is 1 if a test
// failed, or was skipped and ALLOW_SKIP is not 1: a skip nobody reads is a test
// nobody has.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sync/errgroup"
)

func main() {
	args, first := os.Args[1:], ""
	if len(args) > 1 && args[0] == "-first" {
		first, args = args[1], args[2:]
	}
	code, err := run(".", strings.Fields(first), args, os.Getenv("ALLOW_SKIP") == "1", os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "summary:", err)
		code = 1
	}
	os.Exit(code)
}

// run runs "go test -json args" in dir, writes what there is to know to out and
// returns the exit code. Packages that are first are tested with the others beside.
func run(dir string, first, args []string, allowSkip bool, out io.Writer) (int, error) {
	commands := []*exec.Cmd{exec.Command("go", append([]string{"test", "-json"}, args...)...)}
	if len(first) > 0 {
		var err error
		if commands, err = split(dir, first, args); err != nil {
			return 1, err
		}
	}
	r := newReport(out)
	var running errgroup.Group
	failed := make([]bool, len(commands))
	for i, cmd := range commands {
		cmd.Dir = dir
		running.Go(func() (err error) { failed[i], err = follow(cmd, r); return err })
	}
	if err := running.Wait(); err != nil {
		return 1, err
	}
	return r.end(failed[0] || failed[len(failed)-1], allowSkip), nil
}

// follow runs a "go test -json" and tells whether it failed.
func follow(cmd *exec.Cmd, r *report) (failed bool, err error) {
	cmd.Stderr = r
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return true, err
	}
	if err := cmd.Start(); err != nil {
		return true, fmt.Errorf("starting go test: %w", err)
	}
	if isBeside(cmd) {
		defer endWithUs(cmd)()
	}
	for lines := bufio.NewReader(stdout); ; {
		line, err := lines.ReadBytes('\n')
		var e event
		switch {
		case len(line) == 0:
		case json.Unmarshal(line, &e) == nil && e.Action != "":
			r.add(e)
		default:
			_, _ = r.Write(line) // of go test itself, no event
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return true, fmt.Errorf("reading the output of go test: %w", err)
		}
	}
	return cmd.Wait() != nil, nil
}
