package main

import (
	"cmp"
	"debug/buildinfo"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// module is a Go module, or Go's standard library, and the programs that contain it.
type module struct {
	path, version string
	programs      []string
}

// stdlib is the name of Go's standard library in vulnerability databases.
const stdlib = "stdlib"

// modules reads each program's build information (go help buildinfo). Fairlead's own module is not included.
func modules(programs []string) ([]module, error) {
	files, err := expand(programs)
	if err != nil {
		return nil, err
	}
	found := map[[2]string]*module{}
	add := func(path, version, program string) {
		m := found[[2]string{path, version}]
		if m == nil {
			m = &module{path: path, version: version}
			found[[2]string{path, version}] = m
		}
		m.programs = append(m.programs, program)
	}
	for _, file := range files {
		info, err := buildinfo.ReadFile(file)
		if err != nil {
			continue // a script
		}
		add(stdlib, strings.TrimPrefix(info.GoVersion, "go"), file)
		for _, d := range info.Deps {
			if d.Replace != nil {
				d = d.Replace
			}
			if d.Version != "(devel)" { // Fairlead's module, in a program of another module
				add(d.Path, d.Version, file)
			}
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no Go program is among %q", programs)
	}
	var list []module
	for _, m := range found {
		list = append(list, *m)
	}
	slices.SortFunc(list, func(a, b module) int {
		return cmp.Or(strings.Compare(a.path, b.path), strings.Compare(a.version, b.version))
	})
	return list, nil
}

// expand replaces directories with the files in them.
func expand(paths []string) (files []string, err error) {
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		if !info.IsDir() {
			files = append(files, path)
			continue
		}
		entries, err := os.ReadDir(path)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if e.Type().IsRegular() {
				files = append(files, filepath.Join(path, e.Name()))
			}
		}
	}
	return files, nil
}
