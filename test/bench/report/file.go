package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// All is the content of the file: all rows and plots.
type All struct {
	Rows   []Row
	Curves []Curve
}

// Dir is the directory of the file and the plots: FAIRLEAD_BENCH_OUT, or out/bench beside the go.mod above.
func Dir() (string, error) {
	if dir := os.Getenv("FAIRLEAD_BENCH_OUT"); dir != "" {
		return dir, nil
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(dir, "out", "bench"), nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("no go.mod in this directory or above: set FAIRLEAD_BENCH_OUT=DIR")
		}
		dir = filepath.Dir(dir)
	}
}

func file(dir string) string { return filepath.Join(dir, "results.json") }

// Read reads the stored results. A missing file means no results.
func Read(dir string) (All, error) {
	var a All
	text, err := os.ReadFile(file(dir))
	if errors.Is(err, os.ErrNotExist) {
		return a, nil
	}
	if err != nil {
		return a, err
	}
	if err := json.Unmarshal(text, &a); err != nil {
		return a, fmt.Errorf("%s: %w", file(dir), err)
	}
	return a, nil
}

// change reads the file, calls f, and writes the result atomically. Concurrent writers wait.
func change(f func(*All)) error {
	dir, err := Dir()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	lock, err := os.OpenFile(file(dir)+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	a, err := Read(dir)
	if err != nil {
		return err
	}
	f(&a)
	text, err := json.MarshalIndent(a, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(file(dir)+".new", append(text, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(file(dir)+".new", file(dir))
}

// addRow replaces the row of the same name, or adds one at the end of its group.
func (a *All) addRow(r Row) {
	after := len(a.Rows)
	for i, old := range a.Rows {
		if old.Group == r.Group && old.Name == r.Name {
			a.Rows[i] = r
			return
		}
		if old.Group == r.Group {
			after = i + 1
		}
	}
	a.Rows = slices.Insert(a.Rows, after, r)
}

func (a *All) addCurve(c Curve) {
	i := slices.IndexFunc(a.Curves, func(old Curve) bool { return old.Name == c.Name })
	if i < 0 {
		a.Curves = append(a.Curves, c)
	} else {
		a.Curves[i] = c
	}
}
