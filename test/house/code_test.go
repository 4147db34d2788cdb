package house

import (
	"go/ast"
	"go/token"
	"slices"
	"strings"
	"testing"
)

func TestEveryPackageHasADocComment(t *testing.T) {
	files, _ := goFiles(t)
	docs := map[string]string{}
	for _, f := range files {
		if f.syntax.Doc != nil && !strings.HasSuffix(f.syntax.Name.Name, "_test") {
			docs[f.dir] += f.syntax.Doc.Text()
		}
	}
	for _, f := range files {
		name := f.syntax.Name.Name
		if strings.HasSuffix(name, "_test") {
			continue
		}
		want := "Package " + name + " "
		if name == "main" {
			want = "" // a command's doc begins with its own name
		}
		if doc := docs[f.dir]; doc == "" || !strings.Contains(doc, want) {
			t.Errorf("%s: no doc comment \"%s…\": it says what the package is for, and how it recognises what is ours",
				f.dir, want)
			docs[f.dir] = want // once
		}
	}
}

func TestExportedNamesAreDocumented(t *testing.T) {
	files, set := goFiles(t)
	for _, f := range files {
		if f.test || f.syntax.Name.Name == "main" {
			continue
		}
		for _, decl := range f.syntax.Decls {
			for _, name := range undocumented(set, decl) {
				t.Errorf("%s: %s has no doc comment: say what it ensures, units, shapes and errors",
					set.Position(name.Pos()), name.Name)
			}
		}
	}
}

// undocumented returns the exported names of decl without a doc comment.
func undocumented(set *token.FileSet, decl ast.Decl) []*ast.Ident {
	var names []*ast.Ident
	switch d := decl.(type) {
	case *ast.FuncDecl:
		// Methods of fmt.Stringer and error are documented by their names.
		known := d.Recv != nil && slices.Contains([]string{"String", "Error", "Unwrap"}, d.Name.Name)
		if d.Doc == nil && !known && (d.Recv == nil || receiver(d).IsExported()) {
			names = append(names, d.Name)
		}
	case *ast.GenDecl:
		documented, last := false, 0
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.TypeSpec:
				if s.Doc == nil && d.Doc == nil {
					names = append(names, s.Name)
				}
			case *ast.ValueSpec:
				// A constant may be documented by its type's comment, or by the one above its block of lines.
				row := documented && set.Position(s.Pos()).Line == last+1
				typed := d.Tok == token.CONST && s.Type != nil
				documented = d.Doc != nil || s.Doc != nil || s.Comment != nil || typed || row
				last = set.Position(s.End()).Line
				if !documented {
					names = append(names, s.Names...)
				}
			}
		}
	}
	return slices.DeleteFunc(names, func(i *ast.Ident) bool { return !i.IsExported() })
}

// receiver returns the name of the type that the method d belongs to.
func receiver(d *ast.FuncDecl) *ast.Ident {
	typ := d.Recv.List[0].Type
	for {
		switch t := typ.(type) {
		case *ast.StarExpr:
			typ = t.X
		case *ast.IndexExpr:
			typ = t.X
		case *ast.IndexListExpr:
			typ = t.X
		default:
			return t.(*ast.Ident)
		}
	}
}

// State in package variables and init functions prevents two instances in one process, and parallel tests.
func TestNoStateInPackages(t *testing.T) {
	files, set := goFiles(t)
	for _, f := range files {
		for _, decl := range f.syntax.Decls {
			if d, ok := decl.(*ast.FuncDecl); ok && d.Recv == nil && d.Name.Name == "init" {
				t.Errorf("%s: an init function: call it from main, or where it is needed", set.Position(d.Pos()))
			}
		}
		if f.test {
			continue
		}
		for name, value := range packageVars(f) {
			switch pos := set.Position(name.Pos()); {
			case name.Name == "version" && f.syntax.Name.Name == "main": // the linker sets it
			case exceptions()[f.dir+"."+name.Name] != "":
			case !constant(value):
				t.Errorf("%s: package variable %s: only errors, patterns and tables may be one. Pass values in", pos, name.Name)
			case changed(files, f.dir, name.Name):
				t.Errorf("%s: package variable %s is changed: a table is read only", pos, name.Name)
			}
		}
	}
}

// exceptions are the package variables that are state, with the reason.
func exceptions() map[string]string {
	return map[string]string{
		"test/nstest.serial": "all tests of a process draw the names of their namespaces from it",
	}
}

// packageVars returns the package variables of f and their initial values.
func packageVars(f goFile) map[*ast.Ident]ast.Expr {
	vars := map[*ast.Ident]ast.Expr{}
	for _, decl := range f.syntax.Decls {
		d, ok := decl.(*ast.GenDecl)
		if !ok || d.Tok != token.VAR || embedded(d.Doc) {
			continue
		}
		for _, spec := range d.Specs {
			s := spec.(*ast.ValueSpec)
			for i, name := range s.Names {
				if name.Name == "_" {
					continue
				}
				vars[name] = nil
				if i < len(s.Values) {
					vars[name] = s.Values[i]
				}
			}
		}
	}
	return vars
}

// embedded reports whether the compiler fills the variable from a file. CommentGroup.Text omits directives.
func embedded(doc *ast.CommentGroup) bool {
	return doc != nil && strings.HasPrefix(doc.List[len(doc.List)-1].Text, "//go:embed ")
}

// constant reports whether value is a table, or the result of a function that is constant in effect: errors.New,
// fmt.Errorf, regexp.MustCompile.
func constant(value ast.Expr) bool {
	switch v := value.(type) {
	case *ast.CompositeLit:
		return true
	case *ast.CallExpr:
		name := ""
		switch fun := v.Fun.(type) {
		case *ast.SelectorExpr:
			name = fun.Sel.Name
			if x, ok := fun.X.(*ast.Ident); ok && (x.Name+"."+name == "errors.New" || x.Name+"."+name == "fmt.Errorf") {
				return true
			}
		case *ast.Ident:
			name = fun.Name
		}
		return strings.HasPrefix(strings.ToLower(name), "must")
	}
	return false
}

// changed reports whether code in dir assigns to the package variable name or to a part of it, or takes its address.
func changed(files []goFile, dir, name string) bool {
	found := false
	// refers reports whether e is the variable or a part of it, and no local of the same name: the parser has resolved
	// those inside of a function.
	refers := func(e ast.Expr) bool {
		for {
			switch x := e.(type) {
			case *ast.IndexExpr:
				e = x.X
			case *ast.SelectorExpr:
				e = x.X
			case *ast.Ident:
				local := false
				if x.Obj != nil {
					_, local = x.Obj.Decl.(ast.Stmt)
					if field, ok := x.Obj.Decl.(*ast.Field); ok && field != nil {
						local = true
					}
				}
				return x.Name == name && !local
			default:
				return false
			}
		}
	}
	for _, f := range files {
		if f.dir != dir || f.test {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.AssignStmt:
				for _, left := range n.Lhs {
					found = found || n.Tok != token.DEFINE && refers(left)
				}
			case *ast.IncDecStmt:
				found = found || refers(n.X)
			case *ast.UnaryExpr:
				found = found || n.Op == token.AND && refers(n.X)
			case *ast.CallExpr:
				if fun, ok := n.Fun.(*ast.Ident); ok && (fun.Name == "delete" || fun.Name == "clear") && len(n.Args) > 0 {
					found = found || refers(n.Args[0])
				}
			}
			return true
		})
	}
	return found
}

// Durations are not measured with the wall clock, which may be set: a time.Time made from a number has no monotonic
// reading.
func TestDurationsAreMonotonic(t *testing.T) {
	files, set := goFiles(t)
	isCall := func(n ast.Node, names ...string) (*ast.CallExpr, bool) {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return nil, false
		}
		of, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return nil, false
		}
		in, ok := of.X.(*ast.Ident)
		return call, ok && in.Name == "time" && slices.Contains(names, of.Sel.Name)
	}
	for _, f := range files {
		if f.test {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			if call, ok := isCall(n, "Since", "Until"); ok && len(call.Args) == 1 {
				if _, ok := isCall(call.Args[0], "Unix", "UnixMilli", "UnixMicro"); ok {
					t.Errorf("%s: this duration jumps with the machine's clock: keep the time since a time.Now() instead",
						set.Position(call.Pos()))
				}
			}
			return true
		})
	}
}
