package host

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"
)

// Host is one host. The zero value is no host; At and Create return one.
type Host struct {
	// Name is its host name.
	Name string
	// Dir is the machine's path of its pins and private directories.
	Dir string
}

// At returns the host called name below hostsDir, whether it exists or not.
func At(hostsDir, name string) Host {
	return Host{Name: name, Dir: filepath.Join(hostsDir, name)}
}

// Exists reports whether the host is set up, at least in part.
func (h Host) Exists() bool {
	_, err := os.Stat(h.Dir)
	return err == nil
}

// pinned are the namespaces of the files in Dir/ns. Mount comes last, because it is entered last: afterwards the paths
// of the machine are not reachable.
var pinned = [...]struct {
	file string
	flag int
}{{"net", unix.CLONE_NEWNET}, {"uts", unix.CLONE_NEWUTS}, {"mnt", unix.CLONE_NEWNS}}

// ownProcesses are the namespaces of a host with a process 1, pinned and entered when it runs.
var ownProcesses = [...]struct {
	file string
	flag int
}{{"cgroup", unix.CLONE_NEWCGROUP}, {"ipc", unix.CLONE_NEWIPC}, {"pid", unix.CLONE_NEWPID}}

func (h Host) pin(file string) string { return filepath.Join(h.Dir, "ns", file) }

// Do runs f on a thread in the host's namespaces that terminates afterwards. What f opens or starts from its own
// goroutine belongs to the host: files, sockets, processes.
func (h Host) Do(f func() error) error {
	return onThrowaway(func() error {
		if err := h.enter(); err != nil {
			return err
		}
		return f()
	})
}

// DoNet is Do with the network namespace of the file netns, a path on the host, in place of the host's own.
func (h Host) DoNet(netns string, f func() error) error {
	return h.Do(func() error {
		if err := enterNet(netns); err != nil {
			return err
		}
		return f()
	})
}

// Start starts cmd on the host. Its paths are the host's; wait for it anywhere.
func (h Host) Start(cmd *exec.Cmd) error { return h.Do(cmd.Start) }

// Exec replaces this process with argv on the host, in the network namespace netns if that is not empty. It keeps the
// working directory if the host has it too. It returns only if it fails.
func (h Host) Exec(netns string, argv, env []string) error {
	cwd, _ := os.Getwd()
	runtime.LockOSThread()
	if err := h.enter(); err != nil {
		return err
	}
	if netns != "" {
		if err := enterNet(netns); err != nil {
			return err
		}
	}
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return fmt.Errorf("on host %s: %w", h.Name, err)
	}
	if os.Chdir(cwd) != nil {
		if err := os.Chdir("/"); err != nil {
			return err
		}
	}
	return fmt.Errorf("starting %s: %w", path, unix.Exec(path, argv, env))
}

// enter moves the calling thread, which must be locked, into the host.
func (h Host) enter() error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("leaving the shared working directory: %w", err)
	}
	var fds, flags []int
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	for _, p := range slices.Concat(ownProcesses[:], pinned[:]) {
		fd, err := unix.Open(h.pin(p.file), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) && slices.Contains(ownProcesses[:], p) {
			continue // it has no process 1
		}
		if err != nil {
			return fmt.Errorf("entering host %s: opening its %s namespace: %w", h.Name, p.file, err)
		}
		fds, flags = append(fds, fd), append(flags, p.flag)
	}
	for i, flag := range flags {
		if err := unix.Setns(fds[i], flag); err != nil {
			return fmt.Errorf("entering namespace %#x of host %s: %w", flag, h.Name, err)
		}
	}
	return nil
}

func enterNet(netns string) error {
	fd, err := unix.Open(netns, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("entering network namespace %s: %w", netns, err)
	}
	defer unix.Close(fd)
	if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("entering network namespace %s: %w", netns, err)
	}
	return nil
}

// onThrowaway runs f on a locked thread that terminates with it, so f may change the thread's namespaces. The main
// thread cannot be used: Go parks it instead of terminating it, and /proc/self shows its namespaces as the process's.
// If the goroutine happens to be on it, it stays there while another goroutine runs f elsewhere.
func onThrowaway(f func() error) error {
	errc := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			errc <- onThrowaway(f)
			return
		}
		errc <- f()
	}()
	return <-errc
}
