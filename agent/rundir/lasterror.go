package rundir

import (
	"errors"
	"io/fs"
	"os"

	"github.com/fairlead-cni/fairlead/internal/atomicfile"
)

// LastError is the path of the file that holds why the node does not serve pods. The CNI shim reads it when no agent
// answers, so that `kubectl describe pod` shows the cause and not just "connection refused".
type LastError string

// Write replaces the reason.
func (f LastError) Write(reason error) error {
	return atomicfile.Write(string(f), []byte(reason.Error()+"\n"), 0o644)
}

// Clear removes the reason: the node serves pods.
func (f LastError) Clear() error {
	if err := os.Remove(string(f)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
