package drawing

import (
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "update the drawings of docs/")

// Each drawing matches its text.
func TestDrawings(t *testing.T) {
	texts, err := filepath.Glob("../../docs/*.txt")
	if err != nil || len(texts) == 0 {
		t.Fatalf("no drawings: %v", err)
	}
	for _, file := range texts {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		svg, drawn := strings.TrimSuffix(file, ".txt")+".svg", SVG(string(text))
		if *update {
			if err := os.WriteFile(svg, []byte(drawn), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		have, err := os.ReadFile(svg)
		if err != nil || string(have) != drawn {
			t.Errorf("%s is not the drawing of its text: go test ./test/drawing -update (%v)", svg, err)
		}
		for d := xml.NewDecoder(strings.NewReader(drawn)); ; {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s is no XML: %v", svg, err)
			}
		}
		for word := range strings.FieldsSeq(strings.NewReplacer("|", " ", "+", " ").Replace(string(text))) {
			if !strings.ContainsAny(word, "-><") && word != "v" && word != "^" && !strings.Contains(drawn, ">"+strings.ReplaceAll(word, "'", "&#39;")+"<") {
				t.Errorf("%s: the word %q is missing", svg, word)
			}
		}
	}
}

// Line characters in words are not changed.
func TestWords(t *testing.T) {
	for text, want := range map[string]int{"br-int <b>": 2, "+--+": 0, "a v b": 3} {
		if got := strings.Count(SVG(text), "<text"); got != want {
			t.Errorf("%q has %d words, want %d:\n%s", text, got, want, SVG(text))
		}
	}
}
