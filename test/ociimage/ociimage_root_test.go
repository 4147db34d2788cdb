package ociimage

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// readArchive returns the files of an archive by name.
func readArchive(t *testing.T, path string) map[string][]byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	files := map[string][]byte{}
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name] != nil {
			t.Errorf("%s is there twice", h.Name)
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

// Images of the same files share a layer, and each name refers to its own configuration.
func TestWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "images.tar")
	files := []File{{Path: "/etc/passwd", Data: []byte("root:x:0:0::/:/bin/sh\n"), Mode: 0o644}}
	err := Write(path, Image{Names: []string{"example.com/one:1", "example.com/also:2"}, Entrypoint: []string{"/one"}, Files: files},
		Image{Names: []string{"example.com/two:1"}, Entrypoint: []string{"/two"}, Files: files})
	if err != nil {
		t.Fatal(err)
	}
	archive := readArchive(t, path)
	blob := func(d descriptor, into any) {
		t.Helper()
		data := archive["blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:")]
		if len(data) != d.Size {
			t.Fatalf("blob %s has %d bytes, want %d", d.Digest, len(data), d.Size)
		}
		if err := json.Unmarshal(data, into); err != nil {
			t.Fatal(err)
		}
	}
	var index struct{ Manifests []descriptor }
	if err := json.Unmarshal(archive["index.json"], &index); err != nil {
		t.Fatal(err)
	}
	got, layers := map[string]string{}, map[string]bool{}
	for _, d := range index.Manifests {
		var manifest struct {
			Config descriptor
			Layers []descriptor
		}
		var config struct{ Config struct{ Entrypoint []string } }
		blob(d, &manifest)
		blob(manifest.Config, &config)
		got[d.Annotations["io.containerd.image.name"]] = strings.Join(config.Config.Entrypoint, " ")
		layers[manifest.Layers[0].Digest] = true
	}
	want := map[string]string{"example.com/one:1": "/one", "example.com/also:2": "/one", "example.com/two:1": "/two"}
	if len(got) != len(want) || len(layers) != 1 {
		t.Errorf("images %v in %d layers, want %v in one", got, len(layers), want)
	}
	for name, start := range want {
		if got[name] != start {
			t.Errorf("%s starts %q, want %q", name, got[name], start)
		}
	}
}

// An extended image has the layers of its base, which are not copied, and one more.
func TestExtend(t *testing.T) {
	dir := t.TempDir()
	base, path := filepath.Join(dir, "base.tar"), filepath.Join(dir, "more.tar")
	below := map[string]string{"manifest.json": `[{"Config":"c.json","RepoTags":["example.com/one:1"],"Layers":["abc.tar"]}]`, "abc.tar": "12345",
		"c.json": `{"config":{"Entrypoint":["/one"]},"rootfs":{"diff_ids":["sha256:abc"]},"history":[{}]}`}
	f, err := os.Create(base)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(f)
	for name, data := range below {
		if err := put(w, tar.Header{Name: name, Mode: 0o644}, []byte(data)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	if err := Extend(path, base, "2", []File{{Path: "/one", Data: []byte("2")}}); err != nil {
		t.Fatal(err)
	}
	archive := readArchive(t, path)
	if !strings.Contains(string(archive["index.json"]), `"example.com/one:2"`) {
		t.Errorf("index.json has %s", archive["index.json"])
	}
	var config, manifest string
	for name, data := range archive {
		switch {
		case strings.Contains(string(data), `"diff_ids"`):
			config = string(data)
		case strings.Contains(string(data), `"layers":`):
			manifest = string(data)
		case string(data) == "12345":
			t.Errorf("%s is the layer below", name)
		}
	}
	if !strings.Contains(config, `"diff_ids":["sha256:abc","sha256:`) || !strings.Contains(config, `["/one"]`) ||
		strings.Contains(config, "history") || !strings.Contains(manifest, `"digest":"sha256:abc","size":5`) {
		t.Errorf("configuration %s, manifest %s", config, manifest)
	}
	if err := Extend(path, path, "3", nil); err == nil || !strings.Contains(err.Error(), "more.tar: manifest.json") {
		t.Errorf("an image in another format: %v", err)
	}
}

// The error of an unreadable file names it, and no archive is left.
func TestWriteOfNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "images.tar")
	err := Write(path, Image{Names: []string{"example.com/one:1"}, Files: []File{{Path: "/one", From: "/no/such/program"}}})
	if err == nil || !strings.Contains(err.Error(), "image example.com/one:1: /one: open /no/such/program") {
		t.Errorf("error %v, want one with the image and the file", err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("an archive was left: %v", err)
	}
}

// Programs run in the image with only the files added with them.
func TestRootProgramsRun(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("chroot needs root")
	}
	files, err := Programs(t.Context(), "bash", "curl", "ip")
	if err != nil {
		t.Fatal(err)
	}
	data, err := layer(files)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	extract := exec.CommandContext(t.Context(), "tar", "-x", "-C", dir)
	extract.Stdin = bytes.NewReader(data)
	if out, err := extract.CombinedOutput(); err != nil {
		t.Fatalf("tar: %v: %s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), "/usr/bin/bash", "-c", "curl --version && ip -V")
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: dir}
	cmd.Dir, cmd.Env = "/", []string{"PATH=/usr/bin"}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "curl 7") && !strings.Contains(string(out), "curl 8") {
		t.Errorf("%v: %s", err, out)
	}
	if _, err := Programs(t.Context(), "no-such-program"); err == nil || !strings.Contains(err.Error(), "no-such-program") {
		t.Errorf("error %v, want one that names the program", err)
	}
}
