package agent

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// lastError is the file that holds why the node does not serve pods. The CNI
// shim reads it when no agent answers, so that `kubectl describe pod` shows
// the cause and not just "connection refused".
type lastError string

func (f lastError) write(reason error) error {
	if err := os.MkdirAll(filepath.Dir(string(f)), 0o755); err != nil {
		return err
	}
	tmp := string(f) + ".tmp"
	if err := os.WriteFile(tmp, []byte(reason.Error()+"\n"), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, string(f))
}

func (f lastError) clear() error {
	if err := os.Remove(string(f)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
