// Package vswitchd queries the ovs-vswitchd process of a node: whether one runs, which start of it that is, and
// commands over its control socket, as with ovs-appctl(8).
//
// Each function takes Open vSwitch's run directory, such as /var/run/openvswitch, and finds the process by the PID file
// in it. That works across containers: file locks and sockets do not care about PID namespaces.
package vswitchd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

func pidFile(runDir string) string { return filepath.Join(runDir, "ovs-vswitchd.pid") }

// Running reports whether an ovs-vswitchd is running: while it is, it holds a lock on its PID file. If that cannot be
// read, it reports true: what is done to a node without ovs-vswitchd would harm one with it.
func Running(runDir string) bool {
	f, err := os.Open(pidFile(runDir))
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if err != nil {
		return true
	}
	defer f.Close()
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_GETLK, &lock); err != nil {
		return true
	}
	return lock.Type != unix.F_UNLCK
}

// StartID identifies the last start of ovs-vswitchd, whether it still runs or has crashed since: inode and modification
// time, in nanoseconds, of the PID file, which each start recreates. It is empty if there is no PID file: ovs-vswitchd
// was never started, or was stopped properly.
//
// build/ovs/fairlead-ovs-guard writes the same text; the two are compared through the database.
func StartID(runDir string) (string, error) {
	info, err := os.Stat(pidFile(runDir))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("identifying the start of ovs-vswitchd: %w", err)
	}
	mtime := info.ModTime()
	return fmt.Sprintf("%d.%d.%09d", info.Sys().(*syscall.Stat_t).Ino, mtime.Unix(), mtime.Nanosecond()), nil
}

// RunningStartID returns the StartID of the running ovs-vswitchd. It is empty if none runs, or if it is just ending.
func RunningStartID(runDir string) string {
	if !Running(runDir) {
		return ""
	}
	id, err := StartID(runDir)
	if err != nil {
		return ""
	}
	return id
}
