package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/test/lab/host"
)

// politeTimeout is how long runner and agents together may take to end after SIGTERM; killTimeout is how long any
// process may take to end after SIGKILL.
const (
	politeTimeout = 5 * time.Second
	killTimeout   = 10 * time.Second
)

// Down takes away the lab in dir: its processes, namespaces, mounts and files. It needs none of them to be whole, and
// does nothing if there is no lab. progress may be nil.
func Down(ctx context.Context, dir string, progress func(step string)) error {
	if progress == nil {
		progress = func(string) {}
	}
	dir, err := absolute(dir)
	if err != nil {
		return err
	}
	mounted, err := isMounted(dir)
	if err != nil {
		return err
	}
	if !mounted {
		removeIfEmpty(dir) // an Up that was killed at its very beginning
		return nil
	}
	l := &Lab{dir: dir}
	progress("pod runner and agents")
	if err := l.stopPolitely(ctx); err != nil {
		progress(err.Error() + ": killing it")
	}
	progress("processes, namespaces and mounts")
	hosts, err := l.hosts()
	if err != nil {
		return err
	}
	killCtx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	if err := host.Kill(killCtx, hosts...); err != nil {
		return err
	}
	for _, h := range hosts {
		if err := h.Destroy(); err != nil {
			return err
		}
	}
	for mounted {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmounting %s: %w", dir, err)
		}
		if mounted, err = isMounted(dir); err != nil {
			return err
		}
	}
	removeIfEmpty(dir)
	return nil
}

// stopPolitely ends the runner, and gives agents and guards the chance to end by themselves. A guard forks all the
// time, and a kernel in a process (User-Mode Linux 6.12) does not survive a SIGKILL in the middle of a fork.
func (l *Lab) stopPolitely(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, politeTimeout)
	defer cancel()
	if err := l.RunnerStop(ctx); err != nil {
		return errors.Join(err, l.RunnerKill(context.WithoutCancel(ctx)))
	}
	hosts, err := l.hosts()
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
			if err := end(ctx, h, pid, 0); err != nil {
				return fmt.Errorf("agent or guard of %s does not end: %w", h.Name, err)
			}
		}
	}
	return nil
}

// hosts are all that were begun, whatever lab.json says.
func (l *Lab) hosts() ([]host.Host, error) {
	entries, err := os.ReadDir(l.path("hosts"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking for the lab's hosts: %w", err)
	}
	var hosts []host.Host
	for _, e := range entries {
		hosts = append(hosts, host.At(l.path("hosts"), e.Name()))
	}
	return hosts, nil
}

// removeIfEmpty removes the directory; one with anything in it is not ours and stays.
func removeIfEmpty(dir string) { _ = os.Remove(dir) }
