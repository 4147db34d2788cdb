package house

import (
	"go/ast"
	"strings"
	"testing"
)

// golangci-lint checks the sizes of functions: funlen and gocyclo in .golangci.yml.
const (
	maxPackageLines = 2500
	maxFields       = 15
)

// product are the files that ship: no tests, test tooling or build tooling.
func product(files []goFile) (out []goFile) {
	for _, f := range files {
		top, _, _ := strings.Cut(f.dir, "/")
		if !f.test && top != "test" && top != "build" {
			out = append(out, f)
		}
	}
	return out
}

func TestPackagesAreNotTooLarge(t *testing.T) {
	files, _ := goFiles(t)
	lines := map[string]int{}
	for _, f := range product(files) {
		lines[f.dir] += strings.Count(string(f.text), "\n")
	}
	for dir, n := range lines {
		if n > maxPackageLines {
			t.Errorf("%s has %d lines, and may have %d: part of it is a subject of its own, or can go", dir, n, maxPackageLines)
		}
	}
}

// A struct that has methods on its pointer is not plain data: each of them may read and change each field.
func TestStructsAreNotTooLarge(t *testing.T) {
	plain := map[string]string{
		"Match":    "the fields of an OpenFlow match; a table reads and writes them one by one",
		"nicFacts": "what is read of a NIC at once, for a pure function",
	}
	files, set := goFiles(t)
	changing := map[[2]string]bool{} // by directory and type
	for _, f := range product(files) {
		for _, decl := range f.syntax.Decls {
			if d, ok := decl.(*ast.FuncDecl); ok && d.Recv != nil {
				if _, pointer := d.Recv.List[0].Type.(*ast.StarExpr); pointer {
					changing[[2]string{f.dir, receiver(d).Name}] = true
				}
			}
		}
	}
	for _, f := range product(files) {
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok || plain[spec.Name.Name] != "" || !changing[[2]string{f.dir, spec.Name.Name}] {
				return true
			}
			if s, ok := spec.Type.(*ast.StructType); ok && s.Fields.NumFields() > maxFields {
				t.Errorf("%s: %s has %d fields, and may have %d: several of them are one thing",
					set.Position(spec.Pos()), spec.Name.Name, s.Fields.NumFields(), maxFields)
			}
			return true
		})
	}
}
