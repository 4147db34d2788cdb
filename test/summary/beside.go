package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
)

// low is the niceness of what runs beside: a quarter of the time where others want all of it. Less, and its API
// servers are so slow that its tests give up.
const low = 6

// split makes two runs of "go test": of the first packages, and of the others that the last argument names, beside.
// Linux shares processors among sessions before it does among a session's processes, so that one has its own.
func split(dir string, first, args []string) ([]*exec.Cmd, error) {
	flags, last := args[:max(0, len(args)-1)], args[max(0, len(args)-1):]
	chosen, err := packages(dir, first)
	if err != nil {
		return nil, err
	}
	all, err := packages(dir, last)
	if err != nil {
		return nil, err
	}
	others := slices.DeleteFunc(all, func(p string) bool { return slices.Contains(chosen, p) })
	test := append([]string{"test", "-json"}, flags...)
	commands := []*exec.Cmd{exec.Command("go", slices.Concat(test, chosen)...)}
	if len(others) > 0 {
		beside := exec.Command("nice", slices.Concat([]string{"-n", fmt.Sprint(low), "go"}, test, others)...)
		beside.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		commands = append(commands, beside)
	}
	return commands, nil
}

func packages(dir string, patterns []string) ([]string, error) {
	list := exec.Command("go", append([]string{"list"}, patterns...)...)
	list.Dir, list.Stderr = dir, os.Stderr
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list %s: %w", strings.Join(patterns, " "), err)
	}
	return strings.Fields(string(out)), nil
}

func isBeside(cmd *exec.Cmd) bool { return cmd.SysProcAttr != nil && cmd.SysProcAttr.Setsid }

// endWithUs makes a session's share as low as its niceness, and passes signals on to it that a terminal sends to the
// others only, until done is called.
func endWithUs(cmd *exec.Cmd) (done func()) {
	pid := cmd.Process.Pid
	// Kernels without autogroups have no such file: niceness counts there.
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/autogroup", pid), fmt.Append(nil, low), 0)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		for s := range signals {
			_ = syscall.Kill(-pid, s.(syscall.Signal)) // it may have ended
		}
	}()
	return func() { signal.Stop(signals); close(signals) }
}
