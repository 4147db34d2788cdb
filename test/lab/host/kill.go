package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// id is a namespace's inode: nsfs(5) gives every namespace one of its own.
type id struct{ dev, ino uint64 }

func idOf(path string) (id, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return id{}, err
	}
	return id{st.Dev, st.Ino}, nil
}

// Runs reports whether process pid is alive and belongs to the host. A zombie is dead, unless some of its threads are
// still exiting: those still hold its files and locks.
func (h Host) Runs(pid int) bool {
	own := h.ids()
	return len(own) > 0 && belongs(filepath.Join("/proc", strconv.Itoa(pid)), own)
}

// Kill kills every process of the hosts with SIGKILL and waits until they are gone, or ctx ends. It stops after two
// scans without a process: one that is forked during a scan may be missing from the list, and its parent may exit
// before the scan reaches it.
func Kill(ctx context.Context, hosts ...Host) error {
	own := map[id]bool{}
	for _, h := range hosts {
		for i := range h.ids() {
			own[i] = true
		}
	}
	if len(own) == 0 {
		return nil
	}
	for tries, none := 1, 0; ; tries++ {
		pids, err := processes(own)
		if err != nil {
			return err
		}
		if len(pids) == 0 {
			if none++; none == 2 {
				return nil
			}
			continue
		}
		none = 0
		for _, pid := range pids {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("killing process %d of the lab: %w", pid, err)
			}
		}
		if tries%100 == 0 {
			for _, h := range hosts {
				h.thaw()
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("processes %v of the lab do not end: %w", pids, ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// ids are the pinned namespaces of the host; an incomplete host may have none.
func (h Host) ids() map[id]bool {
	plain, err := idOf(h.Dir)
	if err != nil {
		return nil
	}
	own := map[id]bool{}
	for _, p := range slices.Concat(pinned[:], ownProcesses[:]) {
		// A pin without a mount is a plain file in Dir's file system.
		if i, err := idOf(h.pin(p.file)); err == nil && i.dev != plain.dev {
			own[i] = true
		}
	}
	return own
}

func processes(own map[id]bool) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("listing the processes: %w", err)
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if belongs(filepath.Join("/proc", e.Name()), own) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// belongs reports whether every living thread of the process is in a namespace of own. One thread is not sufficient: a
// program that only enters a host briefly, like this one, has a thread there for a moment.
func belongs(proc string, own map[id]bool) bool {
	tasks, err := os.ReadDir(filepath.Join(proc, "task"))
	if err != nil || len(tasks) == 0 {
		return false
	}
	alive := false
	for _, t := range tasks {
		ns := filepath.Join(proc, "task", t.Name(), "ns")
		in := false
		for _, p := range slices.Concat(pinned[:], ownProcesses[:]) {
			i, err := idOf(filepath.Join(ns, p.file))
			in = in || err == nil && own[i]
		}
		// An exiting thread or a zombie has left the pinned namespaces, but keeps its PID namespace until the end. This
		// is checked last, so that a thread that exits during the check does not count as outside the host.
		if _, err := idOf(filepath.Join(ns, pinned[0].file)); err != nil {
			continue
		}
		if !in {
			return false
		}
		alive = true
	}
	return alive
}
