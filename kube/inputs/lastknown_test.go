package inputs

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr"
)

// A file that a newer agent has written is read; one that is truncated, empty or another node's is an error that names
// the file or the node.
func TestLastKnown(t *testing.T) {
	f := lastKnown{path: filepath.Join(t.TempDir(), "last-inputs.json"), node: "me"}
	if err := f.write(&Snapshot{Nodes: map[string]Node{"me": {}}}); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(f.path)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, text, wrong string }{
		{"as written", string(data), ""},
		{"newer field", strings.Replace(string(data), "{", `{"NewKind": {"a": [1]}, `, 1), ""},
		{"truncated", string(data[:len(data)/2]), f.path},
		{"empty", "", f.path},
		{"another node's", strings.Replace(string(data), `"Node":"me"`, `"Node":"you"`, 1), `to node "you"`},
	} {
		if err := os.WriteFile(f.path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		s, _, err := f.read()
		switch {
		case c.wrong == "" && (err != nil || len(s.Nodes) != 1):
			t.Errorf("%s: %v, %v", c.name, s, err)
		case c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)):
			t.Errorf("%s: %v, want %s", c.name, err, c.wrong)
		}
	}
}

// A snapshot without Nodes comes from a lost input: it does not replace the last known objects.
func TestLostInputIsNotKept(t *testing.T) {
	f := lastKnown{path: filepath.Join(t.TempDir(), "last-inputs.json"), node: "me"}
	for _, s := range []*Snapshot{{Nodes: map[string]Node{"me": {}}}, {Pods: map[string]Pod{"ns/a": {}}}} {
		if err := f.write(s); err != nil {
			t.Fatal(err)
		}
	}
	if s, _, err := f.read(); err != nil || len(s.Nodes) != 1 || len(s.Pods) != 0 {
		t.Errorf("%+v, %v", s, err)
	}
}

// What could not be saved because the disk was full is saved once there is space.
func TestSavingIsTriedAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	if err := os.WriteFile(dir, nil, 0o600); err != nil { // in place of the directory
		t.Fatal(err)
	}
	k := &Kubernetes{file: lastKnown{path: filepath.Join(dir, "last.json"), node: "me"}, log: logr.Discard()}
	k.last.Store(&Snapshot{Nodes: map[string]Node{"me": {Name: "me"}}})
	k.read, k.unsaved = true, true
	if k.save(); !k.unsaved {
		t.Error("what was not written counts as saved")
	}
	if err := errors.Join(os.Remove(dir), os.Mkdir(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	k.save()
	if got, _, err := k.file.read(); err != nil || len(got.Nodes) != 1 || k.unsaved {
		t.Errorf("after that: %+v, %v", got, err)
	}
}
