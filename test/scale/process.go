package scale

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Memory is the resident memory of a process and its peak, in MiB: proc_pid_status(5).
func Memory(pid int) (now, high float64, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	kib := map[string]float64{}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		if number, is := strings.CutSuffix(strings.TrimSpace(value), " kB"); is {
			kib[name], err = strconv.ParseFloat(number, 64)
			if err != nil {
				return 0, 0, err
			}
		}
	}
	return kib["VmRSS"] / 1024, kib["VmHWM"] / 1024, nil
}

// CPU is the CPU time of the live threads of a process: the first number of proc_pid_schedstat(5). The times in
// /proc/PID/stat are in hundredths of a second, too coarse for one change.
func CPU(pid int) (time.Duration, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(files) == 0 {
		return 0, fmt.Errorf("process %d has no threads: %w", pid, os.ErrNotExist)
	}
	var sum time.Duration
	for _, file := range files {
		text, err := os.ReadFile(file)
		if os.IsNotExist(err) {
			continue // a thread that has exited
		}
		if err != nil {
			return 0, err
		}
		ran, _, _ := strings.Cut(string(text), " ")
		ns, err := strconv.ParseInt(ran, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", file, err)
		}
		sum += time.Duration(ns)
	}
	return sum, nil
}
