// Package rundir has what an agent keeps in its run directory, for as long as the boot: the lock that makes it the only
// one on its node, and the reason why it does not serve pods.
package rundir

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Path is the run directory. It is the same on every node; labs give each node a mount namespace.
const Path = "/run/fairlead"

// LockPath is the file that an agent locks.
const LockPath = Path + "/agent.lock"

// lockWait is how long a new agent waits for the one before it to be gone.
const lockWait = 3 * time.Second

// Lock makes sure that one agent works on the node. It waits a little for an agent on its way out: one that was killed
// holds the lock until its last thread, or a child of it that is about to start another program, is gone.
func Lock(ctx context.Context) (unlock func(), err error) { return lock(ctx, LockPath, lockWait) }

func lock(ctx context.Context, path string, wait time.Duration) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(wait); syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil; {
		if ctx.Err() != nil || time.Now().After(deadline) {
			f.Close()
			return nil, fmt.Errorf("another fairlead-agent runs on this node (%s is locked): stop it first", path)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return func() { f.Close() }, nil
}
