package ovstest

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// Daemon is one of the two processes of an Open vSwitch.
type Daemon struct {
	t     testing.TB
	name  string
	argv  []string
	env   []string
	log   string // file of stdout and stderr
	ready func() error

	process *os.Process
	exited  chan struct{} // closed when process has been reaped
}

// PID is the process ID of the daemon, 0 if it is not running.
func (d *Daemon) PID() int {
	if d.process == nil {
		return 0
	}
	return d.process.Pid
}

// Start starts the daemon and returns when it serves. It fails the test when that takes longer than patience or the
// daemon is already running.
func (d *Daemon) Start() {
	d.t.Helper()
	if d.process != nil {
		d.t.Fatalf("ovstest: %s already runs as process %d", d.name, d.process.Pid)
	}
	if err := d.spawn(); err != nil {
		d.t.Fatalf("ovstest: starting %s: %v", d.name, err)
	}
	for deadline := time.Now().Add(patience); ; {
		err := d.ready()
		if err == nil {
			return
		}
		select {
		case <-d.exited:
			d.t.Fatalf("ovstest: %s ended while starting\n%s", d.name, tail(d.log))
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			d.t.Fatalf("ovstest: %s is not ready after %s: %v\n%s", d.name, patience, err, tail(d.log))
		}
	}
}

// Signal sends sig to the daemon. Use it for SIGSTOP and SIGCONT; to stop the daemon use Kill.
func (d *Daemon) Signal(sig syscall.Signal) {
	d.t.Helper()
	if d.process == nil {
		d.t.Fatalf("ovstest: %s does not run", d.name)
	}
	if err := d.process.Signal(sig); err != nil {
		d.t.Fatalf("ovstest: signal %v to %s (process %d): %v", sig, d.name, d.process.Pid, err)
	}
}

// Kill kills the daemon with SIGKILL, as in a crash, and returns when it has exited. It does nothing if the daemon is
// down; Start starts it again.
func (d *Daemon) Kill() {
	if d.process == nil {
		return
	}
	_ = d.process.Kill() // an error means that it has already exited
	<-d.exited
	d.process = nil
}

// spawn starts the process from a thread that lives as long as the process:
// Pdeathsig is sent when the *thread* that started it ends, and Go ends
// threads whose goroutine was locked to them.
func (d *Daemon) spawn() error {
	out, err := os.OpenFile(d.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := exec.Command(d.argv[0], d.argv[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = d.env, out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}

	started, exited := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(exited)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // the daemon's log has the reason
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	d.process, d.exited = cmd.Process, exited
	return nil
}

// tail returns the last lines of a log file, for a failure message.
func tail(file string) string {
	const limit = 4096
	b, err := os.ReadFile(file)
	if err != nil {
		return fmt.Sprintf("(no log: %v)", err)
	}
	if len(b) > limit {
		b = b[len(b)-limit:]
	}
	return fmt.Sprintf("--- end of %s ---\n%s", file, b)
}
