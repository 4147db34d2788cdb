package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// deb is an installed Debian package.
type deb struct{ name, version, source, arch string }

// debs reads dpkg's database (dpkg-query(1), deb-control(5)) below root.
func debs(root string) ([]deb, error) {
	f, err := os.Open(filepath.Join(root, "var/lib/dpkg/status"))
	if err != nil {
		return nil, fmt.Errorf("reading Debian's packages: %w", err)
	}
	defer f.Close()
	var all []deb
	var d deb
	installed := false
	end := func() {
		if installed {
			all = append(all, d)
		}
		d, installed = deb{}, false
	}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), ": ")
		switch key {
		case "":
			end()
		case "Package":
			d.name = value
		case "Version":
			d.version = value
		case "Source":
			d.source = value
		case "Architecture":
			d.arch = value
		case "Status":
			installed = strings.HasSuffix(value, " installed")
		}
	}
	end()
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading Debian's packages: %w", err)
	}
	return all, nil
}

// release is ID and VERSION_ID of os-release(5), such as debian-12.
func release(root string) (string, error) {
	text, err := os.ReadFile(filepath.Join(root, "etc/os-release"))
	if err != nil {
		return "", err
	}
	id, version := "", ""
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		value = strings.Trim(value, `"'`)
		switch key {
		case "ID":
			id = value
		case "VERSION_ID":
			version = value
		}
	}
	return id + "-" + version, nil
}
