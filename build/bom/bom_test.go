package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// program builds the plugin's binary: modules are read from binaries.
func program(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fairlead")
	if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", path, "../../cmd/fairlead").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

const status = `Package: openvswitch-common
Status: install ok installed
Architecture: amd64
Source: openvswitch (3.1.0-2)
Version: 3.1.0-2+deb12u1
Description: Open vSwitch common components
 Version: is not the version
 .

Package: gone
Status: deinstall ok config-files
Version: 1
`

func TestSBOM(t *testing.T) {
	root, out := t.TempDir(), filepath.Join(t.TempDir(), "sbom")
	for name, text := range map[string]string{
		"var/lib/dpkg/status": status, "etc/os-release": "VERSION_ID=\"12\"\nID=debian\n"} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	shim := program(t)
	if err := run([]string{"sbom", "-root", root, "-o", out, filepath.Dir(shim)}, nil); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	var d document
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	purls := map[string]component{}
	for _, c := range d.Components {
		purls[c.PURL] = c
	}
	const ovs = "pkg:deb/debian/openvswitch-common@3.1.0-2+deb12u1?arch=amd64&distro=debian-12&upstream=openvswitch"
	if _, ok := purls[ovs]; !ok {
		t.Errorf("no %s in\n%s", ovs, text)
	}
	found := 0
	for purl, c := range purls {
		switch {
		case strings.HasPrefix(purl, "pkg:golang/stdlib@1."), strings.HasPrefix(purl, "pkg:golang/github.com/containernetworking/cni@v"):
			found++
			if len(c.Evidence.Occurrences) != 1 || c.Evidence.Occurrences[0].Location != shim {
				t.Errorf("%s is in %v, want %s", purl, c.Evidence.Occurrences, shim)
			}
		case strings.Contains(purl, "gone"), strings.Contains(purl, "devel"):
			t.Errorf("%s is no part of it", purl)
		}
	}
	if found != 2 {
		t.Errorf("found %d of Go's library and the CNI library in\n%s", found, text)
	}
}

func TestLicences(t *testing.T) {
	out := filepath.Join(t.TempDir(), "licences")
	if err := run([]string{"licences", "-o", out, program(t)}, nil); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"containernetworking/cni v", "\nstdlib 1.", "The Go Authors", "Apache License"} {
		if !bytes.Contains(text, []byte(want)) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if _, err := licencesIn(t.TempDir()); err == nil {
		t.Error("a module without a licence is passed over")
	}
}

// archive is a tar file of the pairs of names and contents.
func archive(t *testing.T, members ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := 0; i < len(members); i += 2 {
		h := tar.Header{Name: members[i], Mode: 0o644, Size: int64(len(members[i+1]))}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(members[i+1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestLayers(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "image.tar")
	image := archive(t,
		"a.tar", string(archive(t, "etc/x", strings.Repeat("x", 2_000_000))),
		"b.tar", string(archive(t, sbomPath, "the parts")),
		"config.json", `{"history":[{"created_by":"/bin/sh -c install"},{"created_by":"ENV x","empty_layer":true},{"created_by":"COPY sbom"}]}`,
		"manifest.json", `[{"Config":"config.json","RepoTags":["a/b:c"],"Layers":["a.tar","b.tar"]}]`)
	if err := os.WriteFile(path, image, 0o644); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := run([]string{"layers", "-extract", dir, path}, &out); err != nil {
		t.Fatal(err)
	}
	want := "     2.0 MB  install\n     0.0 MB  COPY sbom\n     2.0 MB  " + path + ": a/b:c\n"
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", &out, want)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "sbom.cdx.json")); err != nil || string(got) != "the parts" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestWrongArguments(t *testing.T) {
	for _, args := range [][]string{{}, {"sbom"}, {"licences", "x"}, {"layers"}, {"paint", "x"}, {"licences", "-o", "/x", "/dev/null/x"}} {
		if err := run(args, nil); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
}
