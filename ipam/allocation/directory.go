package allocation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/fairlead-cni/fairlead/api"
)

// DefaultDirectory is where allocations are stored without Kubernetes.
const DefaultDirectory = "/var/lib/fairlead/allocations"

// Unreadable is the ContainerID of the owner reported for a file that cannot be read. Its address counts as in use: a
// running pod may have it. No container has this ID.
const Unreadable = "(unreadable file)"

// Directory is the Store in a directory: one JSON file per address, named like the allocation. Several processes on one
// machine may share it. A file appears complete or not at all: it is written and synced under a temporary name, then
// linked to its own, which fails if that exists. Writers lock the directory.
type Directory struct{ path string }

// newFile is the temporary name that the holder of the lock writes to.
const newFile = ".new"

// NewDirectory creates the directory if needed.
func NewDirectory(path string) (*Directory, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("making the directory of the allocations: %w", err)
	}
	return &Directory{path}, nil
}

// Create implements Store.
func (d *Directory) Create(_ context.Context, a api.IPAllocation) (api.IPAllocation, error) {
	if _, _, err := ParseName(a.Name); err != nil {
		return api.IPAllocation{}, err
	}
	err := d.locked(func(dir *os.File) error {
		switch holder, err := d.read(a.Name); {
		case err == nil:
			return &TakenError{Holder: holder}
		case !errors.Is(err, ErrNotFound):
			return err
		}
		a.UID, a.ResourceVersion = uuid.NewUUID(), "1"
		a.CreationTimestamp = metav1.NewTime(time.Now().Truncate(time.Second))
		return d.write(dir, a, os.Link)
	})
	if err != nil {
		return api.IPAllocation{}, unlessTaken("taking", a.Name, err)
	}
	return a, nil
}

// unlessTaken wraps err with what was being done, except where the error is a complete sentence.
func unlessTaken(doing, name string, err error) error {
	if taken := (*TakenError)(nil); err == nil || errors.As(err, &taken) {
		return err
	}
	return fmt.Errorf("%s address %s: %w", doing, name, err)
}

// Get implements Store.
func (d *Directory) Get(_ context.Context, name string) (api.IPAllocation, error) {
	a, err := d.read(name)
	if err != nil {
		return api.IPAllocation{}, fmt.Errorf("reading the allocation of address %s: %w", name, err)
	}
	return a, nil
}

// List implements Store. Unreadable files match any pool and no node.
func (d *Directory) List(_ context.Context, f Filter) ([]api.IPAllocation, error) {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return nil, fmt.Errorf("listing the allocations: %w", err)
	}
	var out []api.IPAllocation
	for _, e := range entries {
		if _, _, err := ParseName(e.Name()); err != nil {
			continue
		}
		a, err := d.read(e.Name())
		if errors.Is(err, ErrNotFound) { // freed in the meantime
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("listing the allocations: %w", err)
		}
		if f.fits(a) {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, func(a, b api.IPAllocation) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// fits reports whether f selects a. The pool of an unreadable file is unknown.
func (f Filter) fits(a api.IPAllocation) bool {
	if f.Pool != "" && a.Spec.Pool != f.Pool && a.Spec.Owner.ContainerID != Unreadable {
		return false
	}
	var r api.AllocationReservation
	if a.Spec.Reservation != nil {
		r = *a.Spec.Reservation
	}
	if f.Unused && a.Spec.Phase == api.PhaseAllocated {
		return false
	}
	return (f.Node == "" || a.Spec.Owner.Node == f.Node) && (f.UID == "" || r.UID == f.UID) &&
		(f.Ordinal == "" || For(r).Ordinal == f.Ordinal)
}

// Update implements Store.
func (d *Directory) Update(_ context.Context, a api.IPAllocation) (api.IPAllocation, error) {
	err := d.locked(func(dir *os.File) error {
		now, err := d.check(a)
		if err != nil {
			return err
		}
		if now.Spec.Address != a.Spec.Address || now.Spec.Pool != a.Spec.Pool {
			return errors.New("address and pool of an allocation cannot be changed: delete it and create another")
		}
		version, _ := strconv.Atoi(a.ResourceVersion) // of an unreadable file: 0
		a.ResourceVersion = strconv.Itoa(version + 1)
		return d.write(dir, a, os.Rename)
	})
	if err != nil {
		return api.IPAllocation{}, fmt.Errorf("updating address %s: %w", a.Name, err)
	}
	return a, nil
}

// Delete implements Store.
func (d *Directory) Delete(_ context.Context, a api.IPAllocation) error {
	err := d.locked(func(dir *os.File) error {
		if _, err := d.check(a); err != nil {
			return err
		}
		if err := os.Remove(d.file(a.Name)); err != nil {
			return err
		}
		return dir.Sync()
	})
	return unlessTaken("freeing", a.Name, err)
}

// check returns the stored allocation if UID and resourceVersion are still those of a.
func (d *Directory) check(a api.IPAllocation) (api.IPAllocation, error) {
	now, err := d.read(a.Name)
	if err == nil && (now.UID != a.UID || now.ResourceVersion != a.ResourceVersion) {
		err = ErrConflict
	}
	return now, err
}

// read reads one file. Readers need no lock: files are written atomically.
func (d *Directory) read(name string) (api.IPAllocation, error) {
	_, addr, err := ParseName(name)
	if err != nil {
		return api.IPAllocation{}, err
	}
	text, err := os.ReadFile(d.file(name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return api.IPAllocation{}, ErrNotFound
	case err != nil:
		return api.IPAllocation{}, err
	}
	var a api.IPAllocation
	if json.Unmarshal(text, &a) != nil || a.Name != name || a.Spec.Address != addr.String() {
		return api.IPAllocation{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: api.IPAllocationSpec{
			Address: addr.String(), Phase: api.PhaseAllocated, Owner: api.AllocationOwner{ContainerID: Unreadable}}}, nil
	}
	return a, nil
}

// write writes a file and moves it to its name with name, os.Link or os.Rename.
func (d *Directory) write(dir *os.File, a api.IPAllocation, name func(before, now string) error) error {
	a.APIVersion, a.Kind = api.AllocationGroup+"/"+api.AllocationVersion, api.AllocationKind
	text, err := json.Marshal(a)
	if err != nil {
		return err
	}
	path := d.file(newFile)
	// A leftover of a writer that was killed.
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := name(path, d.file(a.Name)); err != nil {
		return err
	}
	return dir.Sync()
}

// locked runs f with the directory locked, against other processes and, because each call opens the directory again,
// other goroutines.
func (d *Directory) locked(f func(dir *os.File) error) error {
	dir, err := os.Open(d.path)
	if err != nil {
		return err
	}
	defer dir.Close() // unlocks
	for {
		if err = syscall.Flock(int(dir.Fd()), syscall.LOCK_EX); !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("locking %s: %w", d.path, err)
	}
	return f(dir)
}

func (d *Directory) file(name string) string { return filepath.Join(d.path, name) }
