package house

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The map in docs/development.md names each package, so that a newcomer with a question finds the file.
func TestTheMapNamesEachPackage(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "development.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(text), "## The house\n")
	plan, _, ends := strings.Cut(after, "\nImports point down")
	if !found || !ends {
		t.Fatal("docs/development.md has no map")
	}
	files, _ := goFiles(t)
	seen := map[string]bool{}
	for _, f := range product(files) {
		dir := f.dir
		if seen[dir] || strings.HasPrefix(dir, "cmd/") {
			continue
		}
		seen[dir] = true
		if !regexp.MustCompile(`\b` + regexp.QuoteMeta(path.Base(dir)) + `\b`).MatchString(plan) {
			t.Errorf("the map of docs/development.md does not name package %s", dir)
		}
	}
	if len(seen) < 40 {
		t.Errorf("only %d packages were looked for", len(seen))
	}
}
