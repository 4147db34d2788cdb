package house

import (
	"bytes"
	"go/scanner"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

const maxWidth = 120

// Lines fit side by side on a screen. String literals do not count: a broken message cannot be searched for.
func TestLinesAreNotTooLong(t *testing.T) {
	files, _ := goFiles(t)
	for _, f := range files {
		for i, width := range widths(f) {
			if width > maxWidth {
				t.Errorf("%s:%d: %d columns, want at most %d (without texts in quotes)",
					f.path, i+1, width, maxWidth)
			}
		}
	}
}

// widths returns the width of each line of f without its string literals.
func widths(f goFile) []int {
	var width []int
	for _, line := range strings.Split(string(f.text), "\n") {
		width = append(width, utf8.RuneCountInString(line))
	}
	set := token.NewFileSet()
	file := set.AddFile(f.path, -1, len(f.text))
	var s scanner.Scanner
	s.Init(file, f.text, nil, 0)
	for {
		pos, tok, literal := s.Scan()
		if tok == token.EOF {
			return width
		}
		if tok != token.STRING {
			continue
		}
		for i, part := range strings.Split(literal, "\n") {
			width[file.Line(pos)-1+i] -= utf8.RuneCountInString(part)
		}
	}
}

// What is specific to one machine or one site does not belong in the repository.
func TestNothingOfThisMachine(t *testing.T) {
	forbidden := []struct{ word, why string }{
		{"/wo" + "rk/", "a path of one machine"},
		{"/home" + "/", "a path of one machine"},
		{"GO" + "PROXY", "users have their own way to modules"},
		{"proxy." + "golang.org", "users have their own way to modules"},
		{"docker" + ".io", "the base images are arguments, without a registry"},
		{"ghcr" + ".io", "the base images are arguments, without a registry"},
		{"quay" + ".io", "the base images are arguments, without a registry"},
		{"gcr" + ".io", "the base images are arguments, without a registry"},
	}
	walk(t, func(path string, text []byte) {
		for i, line := range strings.Split(string(text), "\n") {
			for _, f := range forbidden {
				if strings.Contains(line, f.word) {
					t.Errorf("%s:%d: %s: %s", path, i+1, f.word, f.why)
				}
			}
		}
	})
}

// What a program can generate is generated when it is needed; the repository has what people write. Golden files are
// small and read in review.
func TestNothingGenerated(t *testing.T) {
	const largest = 256 << 10
	walk(t, func(path string, text []byte) {
		header := text[:min(len(text), 1000)]
		if filepath.Ext(path) == ".go" && bytes.Contains(header, []byte("// Code "+"generated")) {
			t.Errorf("%s is generated: write it yourself, or generate it when building", path)
		}
		if bytes.IndexByte(text, 0) >= 0 || len(text) > largest {
			t.Errorf("%s is binary or larger than %d bytes: build it, or make it smaller", path, largest)
		}
	})
}
