package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fairlead-cni/fairlead/internal/atomicfile"
)

// Memory is the directory of the copies in memory.
const Memory = "/run/fairlead"

// InMemory returns the path of the in-memory copy of the journal at path.
func InMemory(path string) string { return filepath.Join(Memory, path) }

// Error says that the journal could not be written to disk, or why it could not be read.
type Error struct {
	Path string
	// Err is only the reason, such as syscall.ENOSPC.
	Err error
}

func (e *Error) Error() string {
	return fmt.Sprintf("the uplink's journal %s cannot be written: %s. Free some space there, make its file system "+
		"writable or replace the disk. Until then the NIC can be restored, but not attached", e.Path, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

func writeError(path string, err error) error {
	if err == nil {
		return nil
	}
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		err = p.Err // its path is that of a temporary file
	}
	return &Error{path, err}
}

// Record is the content of the two files.
type Record struct {
	// Newest is the one of this boot, else the newer one, else the only intact one. Without any, Parts is what can be read
	// of a damaged one; nil: there is none.
	Newest, Parts *Journal
	// Both: Newest is in both.
	Both bool
	// Err says what is wrong with damaged ones.
	Err error
}

// Read reads both files.
func Read(path, bootID string) (r Record) {
	newer := func(a, b *Journal) bool {
		return a.BootID == b.BootID && a.Seq > b.Seq || a.BootID == bootID && b.BootID != bootID
	}
	for _, file := range []string{path, InMemory(path)} {
		text, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			r.Both = false
			continue
		}
		j := &Journal{}
		if err == nil {
			j, err = Parse(text)
		}
		switch {
		case err != nil:
			r.Both, r.Err = false, errors.Join(r.Err, fmt.Errorf("the uplink's journal %s cannot be used: %w", file, err))
			if r.Parts == nil || len(j.NIC.Addresses) > len(r.Parts.NIC.Addresses) {
				r.Parts = j
			}
		case r.Newest == nil:
			r.Newest, r.Both = j, file == path
		default:
			if r.Both = r.Both && j.Seq == r.Newest.Seq && j.BootID == r.Newest.BootID; newer(j, r.Newest) {
				r.Newest = j
			}
		}
	}
	return r
}

// Save writes both files, each atomically: a machine crash leaves the old or the new one. onDisk is an *Error. If
// writing to disk fails on the way forward, which ends there, the copy is not written.
func Save(path string, j *Journal) (onDisk, inMemory error) {
	text, err := Encode(j)
	if err != nil {
		return err, err
	}
	onDisk = writeError(path, atomicfile.Write(path, text, 0o600))
	if onDisk != nil && j.Phase == Attaching {
		return onDisk, onDisk
	}
	return onDisk, atomicfile.Write(InMemory(path), text, 0o600)
}

// Try checks whether the journal can be written to disk. The error is an *Error.
func Try(path string, j *Journal) error {
	size := 16 << 10
	if j != nil {
		if text, err := Encode(j); err == nil {
			size = len(text)
		}
	}
	return writeError(path, atomicfile.Try(path, size))
}

// OpenDir opens the journal's directory, or that of the copy if it cannot.
func OpenDir(path string) (dir *os.File, onDisk, err error) {
	dir, err = openDir(filepath.Dir(path))
	if err == nil {
		return dir, nil, nil
	}
	onDisk = writeError(path, err)
	dir, err = openDir(Memory)
	return dir, onDisk, errors.Join(err)
}

func openDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	return os.Open(dir)
}
