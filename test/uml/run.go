package uml

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Command is a command in a kernel.
type Command struct {
	// Kernel is the path of the User-Mode Linux kernel.
	Kernel string
	// Argv is the command; it is searched for in PATH of Env.
	Argv []string
	// Dir is its working directory, Env its environment. FAIRLEAD_UML=1 is added.
	Dir string
	Env []string
	// Stdout and Stderr are the command's own. Its input is empty.
	Stdout, Stderr io.Writer
	// Writable are directories of the host that the command writes to. They must exist.
	Writable []string
	// Memory is that of the guest, in MiB. The host only provides what is used. 0 means 2048.
	Memory int
	// Timeout ends the command with SIGQUIT, and 5 s later with SIGKILL. 0 means no limit.
	Timeout time.Duration
	// Log receives the kernel's log. nil: discarded.
	Log io.Writer
	// Note, if not nil, gets a line if system calls take twice as long in this guest as they could, and one if the
	// machine's limit of mappings is too low for a guest, which is raised where that is allowed.
	Note io.Writer
}

// Inside is set to 1 in the environment of commands.
const Inside = "FAIRLEAD_UML"

// ErrTimeout means that the command ran longer than its Timeout.
var ErrTimeout = errors.New("timed out")

const (
	// bootLimit is many times the second that a boot takes on an idle machine.
	bootLimit = 2 * time.Minute
	// hangLimit is how much longer than its command's Timeout a guest may run.
	hangLimit = time.Minute
	// jobVar passes the job's directory to the guest's init, by the kernel's command line.
	jobVar = "fairlead_job"
)

// job is the input of the guest's init, and result its output. Both are files in the job's directory.
type job struct {
	Argv, Env, Writable []string
	Dir                 string
	Timeout             time.Duration
}

type result struct {
	Exit    int
	Timeout bool
	Error   string // why the command was not run
}

// Run boots a kernel, runs the command and returns its exit code, 128 plus the signal if one killed it. The error is
// the reason if there is none: the command does not exist, it timed out, ctx ended, or the kernel died, with the end of
// its log. When Run returns, nothing is left of the guest.
func Run(ctx context.Context, c Command) (int, error) {
	exit, err := run(ctx, c)
	if err != nil {
		return exit, fmt.Errorf("running %s in User-Mode Linux: %w", strings.Join(c.Argv, " "), err)
	}
	return exit, nil
}

func run(ctx context.Context, c Command) (int, error) {
	init, err := os.Executable()
	if err != nil {
		return 0, err
	}
	moreMaps(mapsFile, orDiscard(c.Note))
	dir, err := c.writeJob()
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	m, err := c.boot(init, dir)
	if err != nil {
		return 0, err
	}
	defer m.end()
	if err := m.await(ctx, c.Timeout); err != nil {
		return 0, err
	}
	m.end()
	return m.result()
}

// writeJob creates the job's directory. Its name has the owner's PID: those of killed processes are removed.
func (c Command) writeJob() (string, error) {
	sweep()
	dir, err := os.MkdirTemp("", fmt.Sprintf("fairlead-uml-%d-", os.Getpid()))
	if err != nil {
		return "", err
	}
	if err := c.fillJob(dir); err != nil {
		os.RemoveAll(dir)
		return "", err
	}
	return dir, nil
}

func sweep() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), "fairlead-uml-*-*"))
	for _, dir := range dirs {
		pid, err := strconv.Atoi(strings.Split(filepath.Base(dir), "-")[2])
		if err == nil && errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			os.RemoveAll(dir)
		}
	}
}

func (c Command) fillJob(dir string) error {
	// The guest's /dev, /proc, /run and /sys are its own.
	for _, own := range []string{"/dev/", "/proc/", "/run/", "/sys/"} {
		if strings.HasPrefix(dir, own) {
			return fmt.Errorf("%s is not visible in the guest: set TMPDIR to a directory on a disk", dir)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "root"), 0o755); err != nil {
		return err
	}
	j := job{Argv: c.Argv, Env: append(c.Env, Inside+"=1"), Dir: c.Dir, Timeout: c.Timeout}
	for _, w := range c.Writable {
		w, err := filepath.Abs(w)
		if err != nil {
			return err
		}
		if info, err := os.Stat(w); err != nil || !info.IsDir() {
			return fmt.Errorf("%s is to be writable, but is not a directory", w)
		}
		j.Writable = append(j.Writable, w)
	}
	data, err := json.Marshal(j)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "job"), data, 0o600)
}

// await waits until the guest has ended.
func (m *machine) await(ctx context.Context, timeout time.Duration) error {
	limit := time.NewTimer(bootLimit)
	defer limit.Stop()
	booted, look := false, time.NewTicker(50*time.Millisecond)
	defer look.Stop()
	for {
		select {
		case <-m.ended:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-limit.C:
			if booted {
				return m.died("the guest hangs: killed")
			}
			return m.died(fmt.Sprintf("the guest has not booted in %s: killed", bootLimit))
		case <-look.C:
			if _, err := os.Stat(filepath.Join(m.dir, "booted")); err != nil {
				continue
			}
			booted = true
			if why := m.slow(); why != "" {
				fmt.Fprintf(m.note, "User-Mode Linux: %s: system calls take twice as long\n", why)
			}
			look.Stop()
			limit.Stop()
			if timeout > 0 {
				limit.Reset(timeout + hangLimit)
			}
		}
	}
}

// result reads the result of the guest's init.
func (m *machine) result() (int, error) {
	data, err := os.ReadFile(filepath.Join(m.dir, "result"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, m.died("the guest died before the command ended")
	}
	var r result
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	switch {
	case err != nil:
		return 0, fmt.Errorf("reading the guest's result: %w", err)
	case r.Timeout:
		return r.Exit, ErrTimeout
	case r.Error != "":
		return 0, errors.New(r.Error)
	}
	return r.Exit, nil
}
