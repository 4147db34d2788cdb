package probe

import (
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestExcused(t *testing.T) {
	report := func(lost int, gap time.Duration) []Report {
		return []Report{{LongestGap: time.Millisecond}, {Lost: lost, LongestGap: gap * time.Millisecond}}
	}
	for _, c := range []struct {
		name              string
		streams, controls []Report
		want              bool
	}{
		{"no controls", report(1, 200), nil, false},
		{"the controls went on", report(12, 153), report(0, 20), false},
		{"they paused, and much less", report(200, 1000), report(0, 118), false},
		{"a pause that fills no queue", report(2, 30), report(0, 40), false},
		{"all stood still", report(12, 153), report(0, 118), true},
		{"the controls lost as well", report(12, 153), report(1, 20), true},
	} {
		if got := Excused(c.streams, c.controls); got != c.want {
			t.Errorf("%s: %t", c.name, got)
		}
	}
}

// Of two processes that share a processor each waits; one that is stopped does not.
func TestStarved(t *testing.T) {
	run := func(argv ...string) int {
		cmd := exec.Command(argv[0], argv[1:]...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		return cmd.Process.Pid
	}
	const within = 100 * time.Millisecond
	idle := run("sleep", "1000")
	if err := unix.Kill(idle, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Wait4(idle, nil, unix.WUNTRACED, nil); err != nil {
		t.Fatal(err)
	}
	stopped := Starved(within, idle)
	busy := []int{run("sh", "-c", "while :; do :; done"), run("sh", "-c", "while :; do :; done")}
	var own, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &own); err != nil {
		t.Fatal(err)
	}
	for cpu := 0; one.Count() == 0; cpu++ {
		if own.IsSet(cpu) {
			one.Set(cpu)
		}
	}
	for _, pid := range busy {
		if err := unix.SchedSetaffinity(pid, &one); err != nil {
			t.Fatal(err)
		}
	}
	for deadline, longest := time.Now().Add(time.Minute), time.Duration(0); longest < within/4; {
		stop := Starved(within, busy...)
		time.Sleep(3 * within)
		if longest = stop(); time.Now().After(deadline) {
			t.Fatalf("of two that share a processor, none has waited for longer than %s within %s", longest, within)
		}
	}
	if waited := stopped(); waited != 0 {
		t.Errorf("a process that is stopped has waited for %s", waited)
	}
	if waited := Starved(within)(); waited != 0 {
		t.Errorf("no process has waited for %s", waited)
	}
}
