package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const cgroupRoot = "/sys/fs/cgroup"

// hierarchy is one tree of cgroups, cgroups(7).
type hierarchy struct {
	// options are its mount options, such as "cpu,cpuacct" or "none,name=systemd"; they are empty for version 2.
	options string
	// mount is its mount point.
	mount string
	// own is the path below mount of this process's cgroup.
	own string
}

// hierarchies parses /proc/PID/cgroup. unified means that version 2 is mounted at cgroupRoot itself.
func hierarchies(text string, unified bool) []hierarchy {
	var out []hierarchy
	for line := range strings.Lines(strings.TrimSpace(text)) {
		// 4:memory:/path, 9:name=systemd:/path, of version 2: 0::/path
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		h := hierarchy{options: f[1], mount: filepath.Join(cgroupRoot, strings.TrimPrefix(f[1], "name=")), own: f[2]}
		switch {
		case f[1] == "" && unified:
			h.mount = cgroupRoot
		case f[1] == "":
			h.mount = filepath.Join(cgroupRoot, "unified")
		case strings.HasPrefix(f[1], "name="):
			h.options = "none," + f[1]
		}
		out = append(out, h)
	}
	return out
}

func isUnified() bool {
	var st unix.Statfs_t
	return unix.Statfs(cgroupRoot, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC
}

// cgroupList is the file that lists a host's cgroups.
func (h Host) cgroupList() string { return filepath.Join(h.Dir, "cgroups") }

// makeCgroups creates the host's cgroup in every hierarchy and records the paths. In version 1 they are below this
// process's, in version 2 below the root, as only there a cgroup may have both processes and children with controllers.
func (h Host) makeCgroups() ([]string, error) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	name := strings.Trim(strings.ReplaceAll(h.Dir, "/", "-"), "-")
	unified := isUnified()
	var dirs []string
	for _, y := range hierarchies(string(text), unified) {
		dir := filepath.Join(y.mount, y.own, name)
		if unified {
			dir = filepath.Join(y.mount, name)
		}
		if _, err := os.Stat(y.mount); errors.Is(err, fs.ErrNotExist) {
			continue // a version 2 hierarchy that is not mounted
		}
		dirs = append(dirs, dir)
	}
	if err := os.WriteFile(h.cgroupList(), []byte(strings.Join(dirs, "\n")), 0o644); err != nil {
		return nil, err
	}
	for _, dir := range dirs {
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("making a cgroup: %w", err)
		}
		if err := inherit(dir); err != nil {
			return nil, err
		}
	}
	if unified {
		return dirs, share(cgroupRoot)
	}
	return dirs, nil
}

// inherit copies the parent's cpuset settings, without which no process can enter a new cgroup, and lets its children
// inherit them.
func inherit(dir string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(filepath.Dir(dir), file))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, file), value, 0o644)
		}
		if err != nil {
			return err
		}
	}
	err := os.WriteFile(filepath.Join(dir, "cgroup.clone_children"), []byte("1"), 0o644)
	if errors.Is(err, fs.ErrNotExist) { // version 2 has no such file
		return nil
	}
	return err
}

// share enables all available controllers for the children of a version 2 cgroup.
func share(dir string) error {
	controllers, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, c := range strings.Fields(string(controllers)) {
		err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0o644)
		if err != nil {
			return fmt.Errorf("cgroup controller %s for the children of %s: %w", c, dir, err)
		}
	}
	return nil
}

// mountCgroups mounts the hierarchies of process 1 on its host, which sees its own cgroups as their roots. lines are
// its /proc/self/cgroup.
func mountCgroups(lines string) error {
	unified := isUnifiedLines(lines)
	if !unified {
		if err := unix.Mount("tmpfs", cgroupRoot, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("mounting %s: %w", cgroupRoot, err)
		}
	}
	var dirs []string
	for _, y := range hierarchies(lines, unified) {
		if err := os.MkdirAll(y.mount, 0o755); err != nil {
			return err
		}
		kind := "cgroup"
		if y.options == "" {
			kind = "cgroup2"
		}
		if err := unix.Mount("cgroup", y.mount, kind, 0, y.options); err != nil {
			return fmt.Errorf("mounting %s (%s): %w", y.mount, y.options, err)
		}
		dirs = append(dirs, y.mount)
	}
	if !unified {
		return writeJoins(dirs)
	}
	// Only the root cgroup may have both processes and children with controllers.
	own := filepath.Join(cgroupRoot, "system")
	if err := os.MkdirAll(own, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(own, "cgroup.procs"), []byte("0"), 0o644); err != nil {
		return err
	}
	if err := share(cgroupRoot); err != nil {
		return err
	}
	return writeJoins([]string{own})
}

// isUnifiedLines reports whether there is no hierarchy of version 1.
func isUnifiedLines(lines string) bool {
	return !slices.ContainsFunc(hierarchies(lines, false), func(y hierarchy) bool { return y.options != "" })
}

// thaw thaws the host's cgroups. In version 1 a frozen process does not die of SIGKILL, and a container runtime that is
// killed while it stops a container may leave the container's cgroup frozen.
func (h Host) thaw() {
	list, err := os.ReadFile(h.cgroupList())
	if err != nil {
		return // it has none
	}
	for _, dir := range strings.Fields(string(list)) {
		_ = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, _ error) error {
			if filepath.Base(path) == "freezer.state" {
				_ = os.WriteFile(path, []byte("THAWED"), 0o644)
			}
			return nil
		})
	}
}

// removeCgroups removes the host's cgroups, deepest first. They become empty soon after its processes have exited.
func (h Host) removeCgroups(ctx context.Context) error {
	list, err := os.ReadFile(h.cgroupList())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, dir := range strings.Fields(string(list)) {
		for {
			err := removeTree(dir)
			if err == nil {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("removing the cgroups of host %s: %w", h.Name, err)
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	return os.Remove(h.cgroupList())
}

// removeTree removes directories only: the files in them belong to the kernel.
func removeTree(dir string) error {
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) && len(dirs) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	for _, d := range slices.Backward(dirs) {
		if err := unix.Rmdir(d); err != nil && !errors.Is(err, unix.ENOENT) {
			return &fs.PathError{Op: "rmdir", Path: d, Err: err}
		}
	}
	return nil
}
