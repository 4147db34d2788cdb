package config

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

var update = flag.Bool("update", false, "write the golden files and docs/config.md instead of comparing them")

// Each case of testdata is a config file and the exact messages about it, as users see them.
func TestWhatIsSaid(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no cases in testdata", err)
	}
	for _, path := range files {
		archive, err := txtar.ParseFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for i := range archive.Files {
			name, isConfig := strings.CutSuffix(archive.Files[i].Name, ".conf")
			if !isConfig {
				continue
			}
			t.Run(filepath.Base(path)+"/"+name, func(t *testing.T) {
				if i+1 == len(archive.Files) || archive.Files[i+1].Name != name+".said" {
					t.Fatalf("%s.conf needs a file %s.said behind it", name, name)
				}
				in := Agent
				if strings.HasPrefix(name, "controller") {
					in = Controller
				}
				got, want := said(in, archive.Files[i].Data), &archive.Files[i+1].Data
				if *update {
					*want = []byte(got)
				} else if got != string(*want) {
					t.Errorf("got:\n%s\nwant:\n%s", got, *want)
				}
			})
		}
		if *update {
			if err := os.WriteFile(path, txtar.Format(archive), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func said(in File, config []byte) string {
	var b strings.Builder
	_, warnings, err := check(config, "f", in)
	for _, w := range warnings {
		fmt.Fprintln(&b, "warning:", w)
	}
	if err != nil {
		fmt.Fprintln(&b, err)
	}
	return b.String()
}
