package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/test/lab/host"
	"github.com/fairlead-cni/fairlead/test/lab/runner"
)

// DaemonCommand is the command of the program lab that runs the pod runner; DaemonDirFlag names its lab.
const (
	DaemonCommand = "daemon"
	DaemonDirFlag = "--dir"
)

// lockWait is how long a new pod runner waits for its predecessor to exit.
const lockWait = 30 * time.Second

// RunDaemon is the main function of the pod runner, in the process that RunnerStart started. It works until ctx ends.
func RunDaemon(ctx context.Context, dir string, log logr.Logger) error {
	l, err := Open(dir)
	if err != nil {
		return err
	}
	lock, err := os.OpenFile(l.path("runner.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	// A killed runner holds the lock until its last thread is gone.
	for end := time.Now().Add(lockWait); unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil; {
		if time.Now().After(end) {
			return fmt.Errorf("the lab in %s has a pod runner already", dir)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err := os.WriteFile(l.path("runner.pid"), []byte(strconv.Itoa(os.Getpid())), 0o644); err != nil {
		return err
	}
	log.Info("pod runner started", "lab", dir)
	pods, err := l.podSource(log)
	if err != nil {
		return err
	}
	r := runner.Runner{Pods: pods, Records: l.Records(), Log: log,
		Node: func(name string) (host.Host, bool) {
			h, _, err := l.node(name)
			return h, err == nil
		}}
	return r.Run(ctx)
}

// RunnerStart starts the lab's pod runner, a process of its own that outlives this one.
func (l *Lab) RunnerStart(ctx context.Context) error {
	if pid := l.RunnerPID(); pid != 0 {
		return fmt.Errorf("the pod runner is already running (pid %d)", pid)
	}
	log, err := os.OpenFile(l.RunnerLog(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("starting the pod runner: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(l.spec.BinDir, "lab"), DaemonCommand, DaemonDirFlag, l.dir)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting the pod runner: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		if data, err := os.ReadFile(l.path("runner.pid")); err == nil && string(data) == strconv.Itoa(cmd.Process.Pid) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("starting the pod runner: %w", ctx.Err())
		case err := <-ended:
			return fmt.Errorf("the pod runner ended at once (%v), see %s", err, l.RunnerLog())
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// RunnerStop stops the pod runner with SIGTERM and waits until it has exited. Pods are not affected.
func (l *Lab) RunnerStop(ctx context.Context) error { return l.runnerSignal(ctx, unix.SIGTERM) }

// RunnerKill kills it with SIGKILL.
func (l *Lab) RunnerKill(ctx context.Context) error { return l.runnerSignal(ctx, unix.SIGKILL) }

func (l *Lab) runnerSignal(ctx context.Context, sig unix.Signal) error {
	pid := l.RunnerPID()
	if pid == 0 {
		return nil
	}
	if err := unix.Kill(pid, sig); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("ending the pod runner: %w", err)
	}
	for l.RunnerPID() == pid {
		select {
		case <-ctx.Done():
			return fmt.Errorf("the pod runner (pid %d) does not end: %w", pid, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

// RunnerPID is the pod runner's process, 0 if it is not running. It is found by its command line, which names the lab,
// so a runner that has only just started is found too.
func (l *Lab) RunnerPID() int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	want := []byte("/lab\x00" + strings.Join([]string{DaemonCommand, DaemonDirFlag, l.dir}, "\x00") + "\x00")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		cmdline, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline")) // empty for a zombie
		if err == nil && bytes.HasSuffix(cmdline, want) {
			return pid
		}
	}
	return 0
}

// RunnerLog is the path of the pod runner's log.
func (l *Lab) RunnerLog() string { return l.path("runner.log") }
