package uml

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// machine is a running kernel.
type machine struct {
	dir   string // of the job
	pid   int
	ended chan struct{}  // closed when the kernel's process has exited
	read  sync.WaitGroup // the readers of its output
	log   tail
	note  io.Writer
	once  sync.Once
}

// boot starts the kernel with init and the job in dir.
func (c Command) boot(init, dir string) (*machine, error) {
	m := &machine{dir: dir, ended: make(chan struct{}), note: orDiscard(c.Note)}
	// The consoles must be pipes: the kernel polls them, which files do not support.
	var ends [3]*os.File
	log := io.Writer(&m.log)
	if c.Log != nil {
		log = io.MultiWriter(&m.log, c.Log)
	}
	for i, to := range []io.Writer{log, orDiscard(c.Stdout), orDiscard(c.Stderr)} {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		ends[i] = w
		m.read.Go(func() { _, _ = io.Copy(to, r); r.Close() })
	}
	cmd := exec.Command(c.Kernel, c.arguments(init, dir)...)
	cmd.Env = append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + dir}, memoryDir(c.memory(), dir)...)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = ends[0], ends[0], ends[1:]
	// A process group of its own, so that it can be killed as a whole; the kernel kills it if this process dies.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		// Pdeathsig is sent when the thread that started the process ends: this one stays until the kernel has exited.
		// It is not unlocked, so it ends then: no other goroutine may run bound to its processor.
		runtime.LockOSThread()
		done := onOneCPU("fairlead-uml-cpu")
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // the result has the reason
		}
		done()
		if err == nil {
			close(m.ended)
		}
	}()
	err := <-started
	for _, w := range ends {
		w.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("starting the kernel: %w", err)
	}
	m.pid = cmd.Process.Pid
	return m, nil
}

func (c Command) memory() int {
	if c.Memory == 0 {
		return 2048
	}
	return c.Memory
}

// arguments are the kernel's command line (Documentation/admin-guide/kernel-parameters.txt of Linux). Consoles 1 and
// 2 are the command's output, 0 the kernel's log.
func (c Command) arguments(init, dir string) []string {
	return []string{
		fmt.Sprintf("mem=%dM", c.memory()), "umid=guest", "uml_dir=" + filepath.Join(dir, "uml") + "/",
		"root=/dev/root", "rootfstype=hostfs", "rootflags=/", "rw", "init=" + init, jobVar + "=" + dir,
		"con=null", "con0=null,fd:1", "con1=null,fd:3", "con2=null,fd:4", "ssl=null",
		"bonding.max_bonds=0", "dummy.numdummies=0", "ifb.numifbs=0", "panic=-1",
		// System calls are passed to the kernel by seccomp, which takes half the time of ptrace. See slow.
		"seccomp=auto",
	}
}

// memoryDir is the argument for the directory of the guest's memory: /dev/shm, unless that is too small or mounted
// noexec, as in many containers. The job's directory works as well, but is slower.
func memoryDir(mib int, dir string) []string {
	var fs unix.Statfs_t
	err := unix.Statfs("/dev/shm", &fs)
	if err == nil && fs.Flags&unix.ST_NOEXEC == 0 && fs.Bavail*uint64(fs.Bsize) > uint64(mib)<<20 {
		return nil // the kernel's default
	}
	return []string{"TMPDIR=" + dir}
}

// slow returns why the guest's kernel uses ptrace instead of seccomp; empty if it does not.
func (m *machine) slow() string {
	const asks = "Checking that seccomp filters can be installed..."
	_, answer, newer := strings.Cut(m.log.String(), asks)
	switch answer, _, _ = strings.Cut(answer, "\n"); {
	case !newer:
		return "this kernel supports only ptrace"
	case answer != "OK":
		return "seccomp filters cannot be installed here (" + answer + "), so the kernel uses ptrace"
	}
	return ""
}

// end kills what is left of the guest and waits for it.
func (m *machine) end() {
	m.once.Do(func() {
		_ = unix.Kill(-m.pid, unix.SIGKILL)
		<-m.ended
		// Processes that the kernel started meanwhile. No process of the group starts others now.
		_ = unix.Kill(-m.pid, unix.SIGKILL)
		m.read.Wait()
	})
}

// died is an error with the end of the kernel's log.
func (m *machine) died(what string) error {
	m.end()
	const lines = 40
	said := strings.Split(strings.TrimSpace(m.log.String()), "\n")
	return fmt.Errorf("%s. The end of its log:\n%s", what, strings.Join(said[max(0, len(said)-lines):], "\n"))
}

func orDiscard(w io.Writer) io.Writer {
	if w == nil {
		return io.Discard
	}
	return w
}

// tail keeps the end of its input.
type tail struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (t *tail) Write(p []byte) (int, error) {
	const keep = 64 << 10
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf.Write(p)
	if over := t.buf.Len() - keep; over > 0 {
		t.buf.Next(over)
	}
	return len(p), nil
}

// String is what was kept.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.String()
}
