// Package rundir manages what an agent keeps in its run directory until the next boot: the lock that makes it the only
// one on its node, and the reason why it does not serve pods.
package rundir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Path is the run directory. It is the same on every node; labs give each node a mount namespace.
const Path = "/run/fairlead"

// LockPath is the file that an agent locks.
const LockPath = Path + "/agent.lock"

// lockWait is how long a new agent waits for the previous one to be gone.
const lockWait = 3 * time.Second

// Lock ensures that only one agent works on the node. It waits briefly for an agent that is ending: one that was killed
// holds the lock until its last thread, or a child that is about to exec another program, is gone.
func Lock(ctx context.Context) (unlock func(), err error) { return lock(ctx, LockPath, lockWait) }

// Locked reports whether an agent works on the node. It locks the file for a moment, for which a starting agent waits.
// If that cannot be determined, it reports false.
func Locked() bool { return locked(LockPath) }

func locked(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB), syscall.EWOULDBLOCK)
}

func lock(ctx context.Context, path string, wait time.Duration) (unlock func(), err error) {
	for deadline := time.Now().Add(wait); ; {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, err
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, err
		}
		for syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
			if ctx.Err() != nil || time.Now().After(deadline) {
				f.Close()
				return nil, fmt.Errorf("another fairlead-agent is running on this node (%s is locked): stop it first", path)
			}
			time.Sleep(10 * time.Millisecond)
		}
		same, err := isAt(f, path)
		if same {
			return func() { f.Close() }, nil
		}
		f.Close()
		if err != nil {
			return nil, err
		}
	}
}

// isAt reports whether the file is still the one at path. Otherwise its lock is worthless: an uninstallation removes
// the file that it has locked, and the next caller creates another.
func isAt(f *os.File, path string) (bool, error) {
	locked, err := f.Stat()
	if err != nil {
		return false, err
	}
	there, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(locked, there), err
}
