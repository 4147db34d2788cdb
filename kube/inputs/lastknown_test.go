package inputs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A file that a newer agent has written is read; one that is truncated, empty or another node's is an error that names
// it.
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
		{"another node's", strings.Replace(string(data), `"Node":"me"`, `"Node":"you"`, 1), `of node "you"`},
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

// A snapshot without Nodes is that of an input that was lost: it does not replace what was known.
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
