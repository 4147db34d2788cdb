package atomicfile

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func files(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

// The directory is created, content and mode are as requested, and leftovers of an earlier write that crashed are
// removed.
func TestWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	path := filepath.Join(dir, "f")
	for _, text := range []string{"a long first content", "short"} {
		if err := Write(path, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != text {
			t.Errorf("it holds %q, %v, want %q", got, err, text)
		}
		if err := os.WriteFile(filepath.Join(dir, ".f.123.tmp"), []byte("cut of"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := Write(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o600 || info.Size() != 0 {
		t.Errorf("the file is %v, %v", info, err)
	}
	if got := files(t, dir); got != "f" {
		t.Errorf("the directory has %q", got)
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// A write that fails leaves only the old file, and the error names the file and keeps its cause.
func TestFailedWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if err := Write(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := Copy(path, io.MultiReader(strings.NewReader("new"), failing{}), 0o600)
	if !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(err.Error(), path) {
		t.Errorf("the error is %v", err)
	}
	got, err := os.ReadFile(path)
	if err != nil || string(got) != "old" || files(t, dir) != "f" {
		t.Errorf("the file holds %q, %v; the directory has %q", got, err, files(t, dir))
	}
	if err := Write(filepath.Join(path, "g"), nil, 0o600); err == nil {
		t.Error("a file is no directory, and there is no error")
	}
}
