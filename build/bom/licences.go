package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

const licencesHead = `Fairlead is under the Apache License 2.0; its text is in the file LICENSE.

Its programs contain the Go modules below, and Go's standard library ("stdlib"). Debian's packages
in the image have their licences in /usr/share/doc/PACKAGE/copyright, and the texts that these
refer to in /usr/share/common-licenses.
`

// notice is a licence text, with the modules that it applies to.
type notice struct {
	text    string
	modules []string
}

// writeLicences writes the licence texts of all modules of the programs, each text once.
func writeLicences(out string, programs []string) error {
	mods, err := modules(programs)
	if err != nil {
		return err
	}
	dirs, err := moduleDirs()
	if err != nil {
		return err
	}
	var notices []notice
	for _, m := range mods {
		name := strings.TrimSuffix(m.path+" "+m.version, " ")
		texts, err := licencesIn(dirs[m.path+" "+m.version])
		if m.path == stdlib {
			texts, err = licencesIn(dirs[stdlib])
		}
		if err != nil {
			return fmt.Errorf("the licence of %s: %w", name, err)
		}
		for _, text := range texts {
			i := slices.IndexFunc(notices, func(n notice) bool { return n.text == text })
			if i < 0 {
				i = len(notices)
				notices = append(notices, notice{text: text})
			}
			notices[i].modules = append(notices[i].modules, name)
		}
	}
	b := bytes.NewBufferString(licencesHead)
	for _, n := range notices {
		fmt.Fprintf(b, "\n%s\n%s\n\n%s\n", strings.Repeat("=", 80), strings.Join(n.modules, "\n"), n.text)
	}
	return os.WriteFile(out, b.Bytes(), 0o644)
}

// moduleDirs returns the module cache's directories of the modules that the working directory's module needs, by path
// and version.
func moduleDirs() (map[string]string, error) {
	list := exec.Command("go", "list", "-m", "-f",
		"{{if .Replace}}{{.Replace.Path}} {{.Replace.Version}} {{.Dir}}{{else}}{{.Path}} {{.Version}} {{.Dir}}{{end}}", "all")
	var stderr bytes.Buffer
	list.Stderr = &stderr
	text, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("%v: %w: %s", list, err, stderr.Bytes())
	}
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("go env GOROOT: %w", err)
	}
	dirs := map[string]string{stdlib: strings.TrimSpace(string(goroot))}
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) == 3 {
			dirs[words[0]+" "+words[1]] = words[2]
		}
	}
	return dirs, nil
}

// licencesIn returns the licence texts in a module's root, including notices.
func licencesIn(dir string) (texts []string, err error) {
	if dir == "" {
		return nil, fmt.Errorf("the module is not in Go's cache: run go mod download")
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		name := strings.ToUpper(e.Name())
		if !e.Type().IsRegular() || !slices.ContainsFunc([]string{"LICENSE", "LICENCE", "COPYING", "NOTICE", "PATENTS"},
			func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		texts = append(texts, strings.TrimSpace(string(text)))
	}
	if len(texts) == 0 {
		return nil, fmt.Errorf("%s has no licence file", dir)
	}
	return texts, nil
}
