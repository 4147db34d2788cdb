package house

import (
	"go/ast"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The pages name tests as evidence of their promises: each test exists.
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
	eachName(t, "`(Test[A-Z][A-Za-z0-9]+)`", func(page, name string) {
		if !tests[name] {
			t.Errorf("%s names %s, and there is no such test: another shows it, or nothing does", page, name)
		}
	})
}

// The pages name targets of the Makefile: "make help" lists each.
func TestPagesNameTargetsThatHelpLists(t *testing.T) {
	help, err := exec.CommandContext(t.Context(), "make", "-s", "-C", root, "help").CombinedOutput()
	if err != nil {
		t.Fatalf("make help: %v: %s", err, help)
	}
	eachName(t, "(?:`|\n    )make ([a-z0-9-]+)", func(page, name string) {
		if !strings.Contains(string(help), "\n  make "+name+" ") {
			t.Errorf("%s names make %s, which make help does not list", page, name)
		}
	})
}

// eachName calls do with the first group of each match of a pattern in README and docs. There must be 20 or more.
func eachName(t *testing.T, pattern string, do func(page, name string)) {
	t.Helper()
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
		for _, match := range regexp.MustCompile(pattern).FindAllSubmatch(text, -1) {
			found++
			do(page, string(match[1]))
		}
	}
	if found < 20 {
		t.Errorf("only %d names were found", found)
	}
}
