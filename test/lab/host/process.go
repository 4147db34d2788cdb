package host

import (
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

	"golang.org/x/sys/unix"
)

// Process is a program on a host that outlives the process that started it. It is identified by its PID file.
type Process struct {
	Host Host
	// Name is the base name of its files, in /run/lab on the host and in the host's directory.
	Name string
}

// Log is the path of the output of the program and its predecessors of this name.
func (p Process) Log() string { return filepath.Join(p.Host.Dir, p.Name+".log") }

func (p Process) pidFile() string { return p.Host.Private("/run/lab/" + p.Name + ".pid") }

// PID is the program's process ID, 0 if it is not running.
func (p Process) PID() int {
	data, err := os.ReadFile(p.pidFile())
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || !p.Host.Runs(pid) {
		return 0
	}
	return pid
}

// Start starts argv on the host, with its output in the log. It is an error if the program is already running.
func (p Process) Start(argv ...string) error {
	if pid := p.PID(); pid != 0 {
		return fmt.Errorf("%s on %s is already running (pid %d)", p.Name, p.Host.Name, pid)
	}
	if err := p.start(argv); err != nil {
		return fmt.Errorf("starting %s on %s: %w", p.Name, p.Host.Name, err)
	}
	return nil
}

func (p Process) start(argv []string) error {
	if err := os.MkdirAll(filepath.Dir(p.pidFile()), 0o755); err != nil {
		return err
	}
	log, err := os.OpenFile(p.Log(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	fmt.Fprintf(log, "--- lab: starting %s, %s\n", p.Name, time.Now().Format(time.RFC3339))
	argv = p.Host.asOwn(argv)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := p.Host.Start(cmd); err != nil {
		return err
	}
	go cmd.Wait() // reaps it if this process lives on
	return os.WriteFile(p.pidFile(), []byte(strconv.Itoa(cmd.Process.Pid)), 0o644)
}

// Signal sends a signal to the program. It is not an error if the program is not running.
func (p Process) Signal(sig unix.Signal) error {
	pid := p.PID()
	if pid == 0 {
		return nil
	}
	if err := unix.Kill(pid, sig); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signalling %s on %s: %w", p.Name, p.Host.Name, err)
	}
	return nil
}

// End sends a terminating signal to the program, and waits until it has exited. A stopped program (SIGSTOP) is
// continued, otherwise it would not receive the signal.
func (p Process) End(ctx context.Context, sig unix.Signal) error {
	pid := p.PID()
	if pid == 0 {
		return nil
	}
	for _, s := range []unix.Signal{sig, unix.SIGCONT} {
		if err := p.Signal(s); err != nil {
			return err
		}
	}
	if err := End(ctx, pid, 0); err != nil {
		return fmt.Errorf("%s on %s: %w", p.Name, p.Host.Name, err)
	}
	return nil
}

// End sends sig (0: no signal) to a process and waits until it has exited with all its threads: then its pidfd is
// readable (pidfd_open(2)), and its sockets are closed. A pid of 0 means that it is not running.
func End(ctx context.Context, pid int, sig unix.Signal) error {
	if pid == 0 {
		return nil
	}
	process, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return os.NewSyscallError("pidfd_open", err)
	}
	defer unix.Close(process)
	if err := unix.PidfdSendSignal(process, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return os.NewSyscallError("pidfd_send_signal", err)
	}
	for ctx.Err() == nil {
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(process), Events: unix.POLLIN}}, 50)
		if ready > 0 {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("poll", err)
		}
	}
	return fmt.Errorf("process %d does not end: %w", pid, ctx.Err())
}

// Tail is the end of the log, at most that many lines.
func (p Process) Tail(lines int) string {
	data, err := os.ReadFile(p.Log())
	if err != nil {
		return "no log: " + err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
