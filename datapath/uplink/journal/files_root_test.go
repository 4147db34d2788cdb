package journal

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/test/nstest"
)

// Of the two files the newer one is used, but never a damaged one if the other is intact.
func TestRootTwoJournals(t *testing.T) {
	nstest.Need(t)
	path := filepath.Join(t.TempDir(), "uplink.json")
	t.Cleanup(func() { os.RemoveAll(InMemory(filepath.Dir(path))) })
	j := example()
	save := func(phase Phase) {
		t.Helper()
		j.Phase = phase
		j.Seq++
		if onDisk, inMemory := Save(path, j); onDisk != nil || inMemory != nil {
			t.Fatal(onDisk, inMemory)
		}
	}
	save(Attaching)
	older, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	save(Attached)
	for _, file := range []string{path, InMemory(path)} {
		for what, text := range map[string][]byte{"older": older, "damaged": older[:100], "empty": nil} {
			now, err := os.ReadFile(file)
			if err == nil {
				err = os.WriteFile(file, text, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			r := Read(path, "b")
			if r.Newest == nil || r.Newest.Phase != Attached || r.Both || (r.Err == nil) != (what == "older") {
				t.Errorf("%s is %s: %+v", file, what, r)
			}
			if r.Err != nil && !strings.Contains(r.Err.Error(), file) {
				t.Errorf("%v does not name the file", r.Err)
			}
			if err := os.WriteFile(file, now, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if r := Read(path, "b"); !r.Both {
		t.Errorf("both are whole: %+v", r)
	}
}
