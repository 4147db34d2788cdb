package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"strings"
)

// document is a CycloneDX 1.5 bill of materials (https://cyclonedx.org/docs/1.5/json/), with the fields used here. It
// has no time and no serial number: the same image produces the same document.
type document struct {
	Format     string      `json:"bomFormat"`
	Spec       string      `json:"specVersion"`
	Version    int         `json:"version"`
	Metadata   metadata    `json:"metadata"`
	Components []component `json:"components"`
}

type metadata struct {
	Component component `json:"component"`
}

type component struct {
	Type     string    `json:"type"`
	Ref      string    `json:"bom-ref,omitempty"`
	Name     string    `json:"name"`
	Version  string    `json:"version,omitempty"`
	PURL     string    `json:"purl,omitempty"`
	Evidence *evidence `json:"evidence,omitempty"`
}

// evidence lists the files in which a component was found.
type evidence struct {
	Occurrences []occurrence `json:"occurrences"`
}

type occurrence struct {
	Location string `json:"location"`
}

// writeSBOM lists the programs' modules and the packages below root; version is the version of the whole. Without root
// it lists only the programs' modules.
func writeSBOM(out, root, version string, programs []string) error {
	mods, err := modules(programs)
	if err != nil {
		return err
	}
	d := document{Format: "CycloneDX", Spec: "1.5", Version: 1,
		Metadata: metadata{component{Type: "container", Name: "fairlead", Version: version}}}
	for _, m := range mods {
		d.Components = append(d.Components, m.component())
	}
	if root == "" {
		d.Metadata.Component.Type = "application"
		return d.write(out)
	}
	packages, err := debs(root)
	if err != nil {
		return err
	}
	distro, err := release(root)
	if err != nil {
		return fmt.Errorf("reading Debian's release: %w", err)
	}
	for _, p := range packages {
		d.Components = append(d.Components, p.component(distro))
	}
	return d.write(out)
}

func (d document) write(out string) error {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false) // package URLs have ampersands
	e.SetIndent("", " ")
	if err := e.Encode(d); err != nil {
		return err
	}
	return os.WriteFile(out, text.Bytes(), 0o644)
}

// Package URLs: https://github.com/package-url/purl-spec.

func (m module) component() component {
	purl := "pkg:golang/" + m.path + "@" + m.version
	c := component{Type: "library", Ref: purl, Name: m.path, Version: m.version, PURL: purl, Evidence: &evidence{}}
	for _, p := range m.programs {
		c.Evidence.Occurrences = append(c.Evidence.Occurrences, occurrence{p})
	}
	return c
}

func (d deb) component(distro string) component {
	q := url.Values{"arch": {d.arch}, "distro": {distro}}
	if d.source != "" {
		name, _, _ := strings.Cut(d.source, " ") // "name (version)"
		q.Set("upstream", name)
	}
	purl := "pkg:deb/debian/" + url.PathEscape(d.name) + "@" + url.PathEscape(d.version) + "?" + q.Encode()
	return component{Type: "library", Ref: purl, Name: d.name, Version: d.version, PURL: purl}
}
