package house

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// The pages name tests as evidence of what they promise: each is there.
func TestPagesNameTestsThatExist(t *testing.T) {
	files, _ := goFiles(t)
	tests := map[string]bool{}
	for _, f := range files {
		for _, d := range f.syntax.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && f.test {
				tests[fn.Name.Name] = true
			}
		}
	}
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, page := range append(pages, filepath.Join(root, "README.md")) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range regexp.MustCompile("`(Test[A-Z][A-Za-z0-9]+)`").FindAllSubmatch(text, -1) {
			if found++; !tests[string(name[1])] {
				t.Errorf("%s names %s, and there is no such test: another shows it, or nothing does", page, name[1])
			}
		}
	}
	if found < 20 {
		t.Errorf("only %d names were found", found)
	}
}
