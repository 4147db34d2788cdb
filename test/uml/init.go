package uml

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Init must be called first in main. In a guest it is the guest's init and does not return; elsewhere it does nothing.
func Init() {
	dir := os.Getenv(jobVar)
	if os.Getpid() != 1 || dir == "" {
		return
	}
	r, err := serve(dir)
	if err != nil {
		r.Error = err.Error()
	}
	if data, err := json.Marshal(r); err == nil {
		_ = os.WriteFile(filepath.Join(dir, "result"), data, 0o644)
	}
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	os.Exit(1) // the kernel panics, and logs it
}

func serve(dir string) (result, error) {
	var j job
	data, err := os.ReadFile(filepath.Join(dir, "job"))
	if err == nil {
		err = json.Unmarshal(data, &j)
	}
	if err != nil {
		return result{}, fmt.Errorf("reading the job: %w", err)
	}
	if err := setupRootfs(dir, j.Writable); err != nil {
		return result{}, fmt.Errorf("setting up the guest: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "booted"), nil, 0o644); err != nil {
		return result{}, err
	}
	out, err := openConsole("/dev/tty1")
	if err != nil {
		return result{}, err
	}
	errs, err := openConsole("/dev/tty2")
	if err != nil {
		return result{}, err
	}
	r, err := j.run(out, errs)
	return r, errors.Join(err, drain(out), drain(errs))
}

// openConsole opens a console as a pipe: output is not translated.
func openConsole(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	fd := int(f.Fd())
	t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	t.Oflag &^= unix.OPOST
	t.Lflag &^= unix.ECHO | unix.ICANON | unix.ISIG
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, t); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// drain waits until the output has left the guest, tcdrain(3).
func drain(f *os.File) error {
	if err := unix.IoctlSetInt(int(f.Fd()), unix.TCSBRK, 1); err != nil {
		return fmt.Errorf("waiting for the output of %s: %w", f.Name(), err)
	}
	return nil
}

// run runs the command and, as init must, reaps orphaned processes.
func (j job) run(out, errs *os.File) (result, error) {
	path, err := j.lookPath()
	if err != nil {
		return result{}, err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return result{}, err
	}
	pid, err := syscall.ForkExec(path, j.Argv, &syscall.ProcAttr{Dir: j.Dir, Env: j.Env,
		Files: []uintptr{null.Fd(), out.Fd(), errs.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true}})
	if err != nil {
		return result{}, fmt.Errorf("starting %s: %w", path, err)
	}
	var late []*time.Timer
	timeouts := make(chan struct{}, 1)
	if j.Timeout > 0 {
		late = append(late,
			time.AfterFunc(j.Timeout, func() { timeouts <- struct{}{}; _ = unix.Kill(-pid, unix.SIGQUIT) }),
			time.AfterFunc(j.Timeout+5*time.Second, func() { _ = unix.Kill(-pid, unix.SIGKILL) }))
	}
	status, err := reap(pid)
	for _, t := range late {
		t.Stop()
	}
	r := result{Exit: status.ExitStatus(), Timeout: len(timeouts) > 0}
	if status.Signaled() {
		r.Exit = 128 + int(status.Signal())
	}
	return r, err
}

// reap reaps all children until pid has exited.
func reap(pid int) (unix.WaitStatus, error) {
	for {
		var status unix.WaitStatus
		child, err := unix.Wait4(-1, &status, 0, nil)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return status, fmt.Errorf("waiting for the command: %w", err)
		}
		if child == pid && (status.Exited() || status.Signaled()) {
			return status, nil
		}
	}
}

// lookPath finds the command by the command's own PATH and directory.
func (j job) lookPath() (string, error) {
	for _, v := range j.Env {
		if path, ok := strings.CutPrefix(v, "PATH="); ok {
			if err := os.Setenv("PATH", path); err != nil {
				return "", err
			}
		}
	}
	if err := os.Chdir(j.Dir); err != nil {
		return "", err
	}
	return exec.LookPath(j.Argv[0])
}
