package conflist

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// InstallShim copies the CNI plugin to binDir under the two names by which
// network configurations call it, where it is not there already, and reports
// whether it changed anything. A plugin of another make with the name antrea is
// replaced: that is how Fairlead takes a network of Antrea over.
func InstallShim(fromBinary, binDir string) (changed bool, err error) {
	content, err := os.ReadFile(fromBinary)
	if err != nil {
		return false, fmt.Errorf("installing the CNI plugin: %w", err)
	}
	if err := os.MkdirAll(binDir, 0o755); err != nil {
		return false, fmt.Errorf("installing the CNI plugin: %w", err)
	}
	for _, name := range []string{"fairlead", "antrea"} {
		path := filepath.Join(binDir, name)
		if isInstalled(path, content) {
			continue
		}
		if err := replace(path, bytes.NewReader(content), 0o755); err != nil {
			return changed, fmt.Errorf("installing the CNI plugin: %w", err)
		}
		changed = true
	}
	return changed, nil
}

func isInstalled(path string, content []byte) bool {
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm() != 0o755 {
		return false
	}
	there, err := os.ReadFile(path)
	return err == nil && bytes.Equal(there, content)
}

// replace makes path a file with the given content. Who opens path sees the old
// or the new file whole, after a power failure too. The name of the file in the
// making has no ending that a runtime reads, and what a crash left of it goes.
func replace(path string, content io.Reader, mode os.FileMode) (err error) {
	dir, name := filepath.Split(path)
	old, err := filepath.Glob(filepath.Join(dir, "."+name+".*.tmp"))
	if err != nil {
		return err
	}
	for _, f := range old {
		os.Remove(f)
	}
	f, err := os.CreateTemp(dir, "."+name+".*.tmp")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	_, err = io.Copy(f, content)
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// syncDir makes a rename or a removal in dir survive a power failure.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
