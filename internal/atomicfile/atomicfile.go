// Package atomicfile replaces files so that whoever reads one, also after a crash of the process or of the machine,
// finds the old content or the new, whole.
//
// There is one discipline: the content goes into a new file in the same directory and is synced, the file is renamed,
// and the directory is synced. The new file is named ".NAME.RANDOM.tmp", which no container runtime and no reader of
// ours takes for a file of its own; what a crash leaves of one goes with the next write. Two processes that write one
// path at the same time do not mix their contents; one of them may fail.
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

// Write makes path a file with that content and mode. It makes the directory, with mode 0755, if there is none.
func Write(path string, content []byte, mode fs.FileMode) error {
	return Copy(path, bytes.NewReader(content), mode)
}

// Copy does what Write does with all that can be read from content.
func Copy(path string, content io.Reader, mode fs.FileMode) error {
	if err := replace(path, content, mode); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

// Try returns the error with which Write of so many bytes to path would fail, for want of room or of the right to, or
// as the disk fails, and leaves nothing behind.
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
	return errors.Join(err, f.Sync(), f.Close()) // a disk that takes nothing may say so to fsync alone
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

// SyncDir makes renames and removals in dir survive a power failure. No such directory is no error: it has gone with
// all that was in it.
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
