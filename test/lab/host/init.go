package host

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Arguments that start a program as process 1, in two steps.
const (
	initCommand = "host-init"
	enter       = "enter" // and the number of cgroups
	mounts      = "mounts"
)

// joins is the file on a host with a process 1 that lists the files by which a process enters its cgroups.
const joins = "/run/lab/cgroups"

// Files of the new process 1, after standard input, output and error.
const (
	resultFile  = 3 // its result: "done", or an error
	cgroupFiles = 4 // cgroup.procs of all its cgroups
)

// StartInit gives the host PID, IPC and cgroup namespaces of its own, and a process 1 in them: program, which calls
// Init. Then it has its own /proc and cgroups, and mounts propagate to and from its containers, as kubelet and a
// runtime require. Everything started on the host afterwards ends with process 1.
func (h Host) StartInit(program string) error {
	if err := h.startInit(program); err != nil {
		return fmt.Errorf("starting process 1 of host %s: %w", h.Name, err)
	}
	return nil
}

func (h Host) startInit(program string) error {
	groups, err := h.makeCgroups()
	if err != nil {
		return err
	}
	result, report, err := os.Pipe()
	if err != nil {
		return err
	}
	defer result.Close()
	defer report.Close()
	cmd := exec.Command(program, initCommand, enter, strconv.Itoa(len(groups)))
	cmd.Dir, cmd.Env = "/", Env()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWIPC}
	cmd.ExtraFiles = []*os.File{report}
	for _, g := range groups {
		procs, err := os.OpenFile(filepath.Join(g, "cgroup.procs"), os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer procs.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, procs)
	}
	if err := h.Start(cmd); err != nil {
		return err
	}
	go cmd.Wait() // reaps it if this process lives on
	report.Close()
	if text, err := io.ReadAll(result); err != nil || string(text) != done {
		return errors.Join(err, fmt.Errorf("it says: %q", text))
	}
	for _, p := range ownProcesses {
		source := fmt.Sprintf("/proc/%d/ns/%s", cmd.Process.Pid, p.file)
		if err := os.WriteFile(h.pin(p.file), nil, 0o444); err != nil {
			return err
		}
		if err := unix.Mount(source, h.pin(p.file), "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("pinning the %s namespace: %w", p.file, err)
		}
	}
	return nil
}

// done is the result of process 1 when everything is set up.
const done = "done"

// Init turns this process into the process 1 of a host if StartInit has started it as such, and then never returns. A
// program that is passed to StartInit calls it first.
func Init() {
	if len(os.Args) < 3 || os.Args[1] != initCommand {
		return
	}
	runtime.LockOSThread()
	report := os.NewFile(resultFile, "result")
	var err error
	if os.Args[2] == enter {
		err = enterCgroups(os.Args[3])
	} else if err = mountOwn(); err == nil {
		fmt.Fprint(report, done)
		report.Close()
		reap()
	}
	fmt.Fprint(report, err)
	os.Exit(1)
}

// enterCgroups moves this process into its cgroups, makes them the roots that it sees, and starts this program again:
// the thread that has the namespace is its only one then.
func enterCgroups(count string) error {
	n, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	for fd := range n {
		procs := os.NewFile(uintptr(cgroupFiles+fd), "cgroup.procs")
		if _, err := procs.WriteString("0"); err != nil {
			return fmt.Errorf("entering a cgroup: %w", err)
		}
		procs.Close()
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("a new cgroup namespace: %w", err)
	}
	return unix.Exec("/proc/self/exe", []string{os.Args[0], initCommand, mounts}, os.Environ())
}

// mountOwn mounts the file systems of the new namespaces.
func mountOwn() error {
	if err := os.MkdirAll("/run/lab", 0o755); err != nil {
		return err
	}
	for file, value := range ownSysctls() {
		if err := os.WriteFile(ownSysctl(file), []byte(value+"\n"), 0o444); err != nil {
			return err
		}
	}
	bootID, err := os.ReadFile("/proc/sys/" + bootIDSysctl)
	if err != nil {
		return err
	}
	if err := os.WriteFile(ownSysctl(bootIDSysctl), bootID, 0o444); err != nil {
		return err
	}
	lines, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mounting /proc: %w", err)
	}
	files := []string{bootIDSysctl}
	for file := range ownSysctls() {
		files = append(files, file)
	}
	for _, file := range files {
		if err := unix.Mount(ownSysctl(file), "/proc/sys/"+file, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("giving the host its own %s: %w", file, err)
		}
	}
	if err := mountCPUInfo(); err != nil {
		return err
	}
	if err := mountCgroups(string(lines)); err != nil {
		return err
	}
	if err := unix.Mount("bpf", "/sys/fs/bpf", "bpf", 0, "mode=700"); err != nil {
		return fmt.Errorf("mounting /sys/fs/bpf: %w", err)
	}
	return unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "")
}

// mountCPUInfo names a clock speed in the host's /proc/cpuinfo if the kernel does not, as in User-Mode Linux: kubelet
// exits without one.
func mountCPUInfo() error {
	const file, own = "/proc/cpuinfo", "/run/lab/cpuinfo"
	text, err := os.ReadFile(file)
	if err != nil || strings.Contains(string(text), "cpu MHz") {
		return err
	}
	if err := os.WriteFile(own, append([]byte("cpu MHz\t\t: 1000.000\n"), text...), 0o444); err != nil {
		return err
	}
	if err := unix.Mount(own, file, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("giving the host its own %s: %w", file, err)
	}
	return nil
}

const bootIDSysctl = "kernel/random/boot_id"

// ownSysctls are settings of the whole machine that kubelet changes when it starts. A host has files in their place
// with the required values.
func ownSysctls() map[string]string {
	return map[string]string{"vm/overcommit_memory": "1", "kernel/panic": "10", "kernel/panic_on_oops": "1"}
}

func ownSysctl(file string) string { return "/run/lab/" + filepath.Base(file) }

// OwnBootID is the file with the boot ID on a host with a process 1.
func OwnBootID() string { return ownSysctl(bootIDSysctl) }

// reap reaps orphaned processes until this process is killed.
func reap() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	signal.Ignore(unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	for ; ; <-ended {
		for {
			pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
			if pid <= 0 && !errors.Is(err, unix.EINTR) {
				break
			}
		}
	}
}

// asOwn is argv with a prefix that enters the cgroups of the host, if it has a process 1.
func (h Host) asOwn(argv []string) []string {
	if _, err := os.Stat(h.Private(joins)); err != nil {
		return argv
	}
	const script = `while read -r f; do echo 0 >"$f"; done <` + joins + ` && exec "$@"`
	return append([]string{"sh", "-c", script, "sh"}, argv...)
}

// writeJoins writes the list of files by which a process enters the cgroups.
func writeJoins(dirs []string) error {
	var b strings.Builder
	for _, dir := range dirs {
		fmt.Fprintln(&b, filepath.Join(dir, "cgroup.procs"))
	}
	return os.WriteFile(joins, []byte(b.String()), 0o444)
}
