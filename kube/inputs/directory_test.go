package inputs

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
)

const nodeA = "apiVersion: v1\nkind: Node\nmetadata: {name: a}\nspec: {podCIDR: 10.0.1.0/24}\n"

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	// By rename: a file that is read between truncation and write is empty.
	tmp := filepath.Join(dir, "."+name)
	if err := os.WriteFile(tmp, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(tmp, filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

func runDirectory(t *testing.T, dir string) *Directory {
	t.Helper()
	d, err := NewDirectory(dir, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- d.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return d
}

// eventually waits until the directory's snapshot satisfies ok.
func eventually(t *testing.T, d *Directory, what string, ok func(*Snapshot) bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	for !ok(d.Snapshot()) {
		select {
		case <-d.Changed():
		case <-deadline:
			t.Fatalf("%s did not arrive: %+v", what, d.Snapshot())
		}
	}
}

func TestDirectoryFollowsChanges(t *testing.T) {
	dir := t.TempDir()
	d := runDirectory(t, dir)
	write(t, dir, "a.yaml", nodeA)
	eventually(t, d, "a new file", func(s *Snapshot) bool { return len(s.Nodes) == 1 })
	write(t, dir, "ignored.txt", "not a manifest")
	write(t, dir, "b.json", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"ns"}}`)
	eventually(t, d, "JSON", func(s *Snapshot) bool { return len(s.Namespaces) == 1 })
	if err := os.Remove(filepath.Join(dir, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	eventually(t, d, "the removal", func(s *Snapshot) bool { return len(s.Nodes) == 0 })
}

// Refresh is for callers that cannot wait until the directory has settled.
func TestDirectoryRefresh(t *testing.T) {
	dir := t.TempDir()
	d := runDirectory(t, dir)
	eventually(t, d, "an empty directory", func(s *Snapshot) bool { return len(s.Nodes) == 0 })
	write(t, dir, "a.yaml", nodeA)
	if s := d.Refresh(); len(s.Nodes) != 1 || len(d.Snapshot().Nodes) != 1 {
		t.Errorf("Refresh returned %+v, then Snapshot %+v, want the new Node in both", s, d.Snapshot())
	}
	select {
	case <-d.Changed():
	case <-time.After(time.Minute):
		t.Error("no notification of the change")
	}
}

func TestDirectoryBadFileKeepsWhatItHeld(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a.yaml", nodeA)
	d := runDirectory(t, dir)
	write(t, dir, "a.yaml", "kind: [")
	eventually(t, d, "the problem", func(s *Snapshot) bool { return len(s.Problems) == 1 })
	s := d.Snapshot()
	if len(s.Nodes) != 1 {
		t.Error("a file that broke took its Node away")
	}
	if !strings.Contains(s.Problems[0], filepath.Join(dir, "a.yaml")) {
		t.Errorf("the problem does not name the file: %s", s.Problems[0])
	}
	write(t, dir, "a.yaml", nodeA)
	eventually(t, d, "the corrected file", func(s *Snapshot) bool { return len(s.Problems) == 0 })
}

func TestDirectoryObjectInTwoFiles(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "1.yaml", nodeA)
	d := runDirectory(t, dir)
	write(t, dir, "2.yaml", strings.Replace(nodeA, "10.0.1", "10.0.2", 1))
	eventually(t, d, "the problem", func(s *Snapshot) bool { return len(s.Problems) == 1 })
	if got := d.Snapshot().Nodes["a"].PodCIDRs[0].String(); got != "10.0.1.0/24" {
		t.Errorf("the second file won: podCIDR %s", got)
	}
}

func TestDirectoryStartRefusesBadFile(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "bad.yaml", "kind: [")
	if _, err := NewDirectory(dir, logr.Discard()); err == nil || !strings.Contains(err.Error(), "bad.yaml") {
		t.Errorf("got %v, want an error that names bad.yaml", err)
	}
	if _, err := NewDirectory(filepath.Join(dir, "absent"), logr.Discard()); err == nil {
		t.Error("an absent directory was accepted")
	}
}

func TestDirectoryThatGoesAwayKeepsObjects(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "m")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "a.yaml", nodeA)
	d, err := NewDirectory(dir, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dir, dir+".gone"); err != nil {
		t.Fatal(err)
	}
	if err := d.read(); err == nil {
		t.Error("reading an absent directory succeeded")
	}
	if len(d.Snapshot().Nodes) != 1 {
		t.Error("an unreadable directory took its Nodes away")
	}
}
