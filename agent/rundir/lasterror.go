package rundir

import (
	"errors"
	"io/fs"
	"os"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/internal/atomicfile"
)

// LastError is a file with the reason why the node does not serve pods. The CNI shim reads it when no agent answers, so
// that `kubectl describe pod` shows the cause and not just "connection refused". A failed write, as on a full disk, is
// only logged: it must not stop the agent.
type LastError struct {
	Path string
	Log  logr.Logger
}

// Write replaces the reason.
func (f LastError) Write(reason error) {
	if err := atomicfile.Write(f.Path, []byte(reason.Error()+"\n"), 0o644); err != nil {
		f.Log.Error(err, "writing the reason for the CNI plugin", "reason", reason.Error())
	}
}

// Clear removes the reason: the node serves pods.
func (f LastError) Clear() {
	if err := os.Remove(f.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.Log.Error(err, "removing the reason for the CNI plugin")
	}
}
