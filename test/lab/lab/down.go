package lab

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/test/lab/host"
)

// politeTimeout is the time limit for runner and agents together to exit after SIGTERM; killTimeout is that of any
// process after SIGKILL.
const (
	politeTimeout = 5 * time.Second
	killTimeout   = 10 * time.Second
)

// Down removes the lab in dir: its processes, namespaces, mounts and files. None of them need be complete, and it does
// nothing if there is no lab. progress may be nil.
func Down(ctx context.Context, dir string, progress func(step string)) error {
	if progress == nil {
		progress = func(string) {}
	}
	dir, err := host.Absolute(dir)
	if err != nil {
		return err
	}
	if mounted, err := host.IsPlace(dir); err != nil || !mounted {
		return errors.Join(err, host.RemovePlace(ctx, dir)) // an Up that was killed at its very beginning
	}
	l := &Lab{dir: dir}
	progress("pod runner and agents")
	if err := l.stopPolitely(ctx); err != nil {
		progress(err.Error() + ": killing it")
	}
	progress("processes, namespaces and mounts")
	return host.RemovePlace(ctx, dir)
}

// stopPolitely stops the runner, and lets agents and guards exit by themselves. A guard forks continuously, and a
// kernel in a process (User-Mode Linux 6.12) does not survive a SIGKILL in the middle of a fork.
func (l *Lab) stopPolitely(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, politeTimeout)
	defer cancel()
	if err := l.RunnerStop(ctx); err != nil {
		return errors.Join(err, l.RunnerKill(context.WithoutCancel(ctx)))
	}
	hosts, err := host.All(l.dir)
	if err != nil {
		return err
	}
	pids := map[host.Host][]int{}
	for _, h := range hosts {
		for _, pid := range []int{pidIn(h, agentPID), Guard.PID(h)} {
			if pid == 0 {
				continue
			}
			pids[h] = append(pids[h], pid)
			if err := unix.Kill(pid, unix.SIGTERM); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
	}
	for h, all := range pids {
		for _, pid := range all {
			if err := host.End(ctx, pid, 0); err != nil {
				return fmt.Errorf("agent or guard of %s does not end: %w", h.Name, err)
			}
		}
	}
	return nil
}
