// Package house checks, as tests, the rules of the code base that no compiler checks: which package may import which,
// what must be documented, what must not be written. Each failure gives the reason of its rule. An exception is a line
// in this package, with its reason, in the change that needs it.
package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const (
	module = "github.com/fairlead-cni/fairlead"
	root   = "../.."
)

// goFile is one parsed Go file of the repository.
type goFile struct {
	// path is relative to the root, and dir its folder: "datapath/route".
	path, dir string
	test      bool
	syntax    *ast.File
	text      []byte
}

// imports returns the paths of all packages that f imports.
func (f goFile) imports() []string {
	var paths []string
	for _, spec := range f.syntax.Imports {
		path, _ := strconv.Unquote(spec.Path.Value) // already parsed, so its quoting is valid
		paths = append(paths, path)
	}
	return paths
}

// goFiles returns every Go file, and the positions of their syntax.
func goFiles(t *testing.T) ([]goFile, *token.FileSet) {
	t.Helper()
	all, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	if len(all.files) < 50 {
		t.Fatalf("%d Go files under %s: this is not the repository", len(all.files), root)
	}
	return all.files, all.set
}

// tree is the repository as all rules read it.
type tree struct {
	texts map[string][]byte // by path
	paths []string          // in order
	files []goFile
	set   *token.FileSet
}

// parsed reads the repository once for all rules.
var parsed = sync.OnceValues(func() (tree, error) {
	all := tree{texts: map[string][]byte{}, set: token.NewFileSet()}
	if err := all.read(); err != nil {
		return all, err
	}
	for _, path := range all.paths {
		if filepath.Ext(path) != ".go" {
			continue
		}
		syntax, err := parser.ParseFile(all.set, path, all.texts[path], parser.ParseComments)
		if err != nil {
			return all, err
		}
		all.files = append(all.files, goFile{path: path, dir: filepath.ToSlash(filepath.Dir(path)),
			test: strings.HasSuffix(path, "_test.go"), syntax: syntax, text: all.texts[path]})
	}
	return all, nil
})

// read reads every file of the repository, without build output (bin, out) and git's files.
func (all *tree) read() error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() && (rel == ".git" || rel == "bin" || rel == "out") {
			return filepath.SkipDir
		}
		// In a linked worktree .git is a file.
		if !d.Type().IsRegular() || rel == ".git" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		all.paths, all.texts[rel] = append(all.paths, rel), text
		return nil
	})
}

// walk calls do with every file of the repository that was read.
func walk(t *testing.T, do func(path string, text []byte)) {
	t.Helper()
	all, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all.paths {
		do(path, all.texts[path])
	}
}
