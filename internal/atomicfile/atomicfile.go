// Package atomicfile replaces files so that a reader, even after a crash of the process or the machine, finds either
// the old or the new content, complete.
//
// The content is written to a new file in the same directory and synced, the file is renamed, and the directory is
// synced. The new file is named ".NAME.RANDOM.tmp", which container runtimes and Fairlead's readers ignore; one that a
// crash has left is removed by the next write. Two processes that write one path at the same time do not mix their
// contents; one of them may fail.
package atomicfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Write makes path a file with that content and mode. It creates the directory, with mode 0755, if there is none.
func Write(path string, content []byte, mode fs.FileMode) error {
	return Copy(path, bytes.NewReader(content), mode)
}

// Copy is Write with all that can be read from content.
func Copy(path string, content io.Reader, mode fs.FileMode) error {
	if err := replace(path, content, mode); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

// Try returns the error with which a Write of so many bytes to path would fail, because of a full or failing disk or
// missing permissions, and leaves nothing behind.
func Try(path string, size int) error {
	dir, name := filepath.Split(filepath.Clean(path))
	dir = filepath.Clean(dir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, "."+name+".*.tmp")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(make([]byte, size))
	return errors.Join(err, f.Sync(), f.Close()) // a disk that accepts no writes may report that only to fsync
}

// removeLeft removes what crashes have left of new files for name. What can't be removed does no harm.
func removeLeft(dir, name string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		random, ours := strings.CutPrefix(e.Name(), "."+name+".")
		random, temporary := strings.CutSuffix(random, ".tmp")
		if ours && temporary && strings.Trim(random, "0123456789") == "" {
			os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}

func replace(path string, content io.Reader, mode fs.FileMode) (err error) {
	dir, name := filepath.Split(filepath.Clean(path))
	dir = filepath.Clean(dir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	removeLeft(dir, name)
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
	return SyncDir(dir)
}

// SyncDir makes renames and removals in dir survive a power failure. A missing directory is not an error: its content
// is gone with it.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
