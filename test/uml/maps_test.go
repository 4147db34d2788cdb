package uml

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A limit of mappings that is too low is raised and reported, or only reported if it cannot be changed.
func TestMoreMaps(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct{ before, after, note string }{
		{"65530\n", "1048576", "now 1048576"}, {"1048576\n", "1048576\n", ""}, {"2147483642\n", "2147483642\n", ""},
	} {
		file := filepath.Join(dir, "max_map_count")
		if err := os.WriteFile(file, []byte(c.before), 0o600); err != nil {
			t.Fatal(err)
		}
		var note strings.Builder
		moreMaps(file, &note)
		after, err := os.ReadFile(file)
		said := note.String()
		if err != nil || string(after) != c.after || (said != "") != (c.note != "") || !strings.Contains(said, c.note) {
			t.Errorf("of %q it made %q, %v, and said %q", c.before, after, err, said)
		}
	}
	for file, want := range map[string]string{filepath.Join(dir, "none"): "",
		"/proc/sys/kernel/ngroups_max": "As root: sysctl -w"} { // a small number that is read-only
		var note strings.Builder
		if moreMaps(file, &note); (note.Len() > 0) != (want != "") || !strings.Contains(note.String(), want) {
			t.Errorf("of %s it said %q, want %q", file, note.String(), want)
		}
	}
}
