package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Finding is one message about a config file: an error or a warning.
type Finding struct {
	File string
	// Line and Column start at 1. 0 means the file as a whole.
	Line, Column int
	// Keys are the keys concerned, none for the file's form. A warning names all keys that it applies to.
	Keys []string
	Text string
}

// String returns "file:line:column: key, key: text".
func (f Finding) String() string {
	var b strings.Builder
	b.WriteString(f.File)
	if f.Line > 0 {
		fmt.Fprintf(&b, ":%d", f.Line)
	}
	if f.Column > 0 {
		fmt.Fprintf(&b, ":%d", f.Column)
	}
	b.WriteString(": ")
	if len(f.Keys) > 0 {
		b.WriteString(strings.Join(f.Keys, ", ") + ": ")
	}
	b.WriteString(f.Text)
	return b.String()
}

// Errors are all errors of one file, sorted by line.
type Errors []Finding

// Error returns the errors, one per line.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, f := range e {
		lines[i] = f.String()
	}
	return strings.Join(lines, "\n")
}

func byPosition(a, b Finding) int {
	return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
}

// merged sorts warnings by position and joins those with the same text.
func merged(warnings []Finding) []Finding {
	slices.SortStableFunc(warnings, byPosition)
	var out []Finding
	for _, w := range warnings {
		i := slices.IndexFunc(out, func(f Finding) bool { return f.Text == w.Text })
		if i < 0 {
			out = append(out, w)
			continue
		}
		out[i].Keys = append(out[i].Keys, w.Keys...)
	}
	return out
}
