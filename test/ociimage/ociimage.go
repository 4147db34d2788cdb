// Package ociimage writes container images without a container engine, for tests: one layer of files of this machine,
// in the archive format of the OCI image layout that `ctr images import` reads.
// https://github.com/opencontainers/image-spec/blob/v1.1.1/image-layout.md
package ociimage

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Image is one image, under one name or several.
type Image struct {
	Names      []string // with registry and tag: registry.k8s.io/pause:3.10
	Entrypoint []string
	Cmd        []string
	Env        []string // NAME=value
	Files      []File
}

// File is one file of an image. Directories above it are created, readable for all.
type File struct {
	Path string      // in the image, from the root
	Mode os.FileMode // with os.ModeDir or os.ModeSymlink; permissions 0 mean 0755
	Data []byte      // of a regular file
	From string      // of a regular file, instead of Data: the path of one on this machine
	Link string      // of a symbolic link: its target
}

// Write writes an archive of images to path. Images of the same files share a layer.
func Write(path string, images ...Image) error {
	return write(path, func(a *archive) error {
		for _, image := range images {
			if err := a.add(image); err != nil {
				return fmt.Errorf("image %s: %w", image.Names[0], err)
			}
		}
		return nil
	})
}

// write writes an archive to path. If that fails, no file is left.
func write(path string, fill func(*archive) error) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() {
		if e := f.Close(); err == nil {
			err = e
		}
		if err != nil {
			os.Remove(path)
		}
	}()
	a := &archive{out: tar.NewWriter(f), written: map[string]bool{}}
	if err := fill(a); err != nil {
		return err
	}
	return a.finish()
}

// descriptor is type, digest and size of a blob: https://github.com/opencontainers/image-spec/blob/v1.1.1/descriptor.md
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// archive is an image layout that is being written.
type archive struct {
	out     *tar.Writer
	written map[string]bool // digests
	index   []descriptor
}

// media is the beginning of all media types.
const media = "application/vnd.oci.image."

func (a *archive) add(image Image) error {
	data, err := layer(image.Files)
	if err != nil {
		return err
	}
	layer, err := a.blob(media+"layer.v1.tar", data)
	if err != nil {
		return err
	}
	return a.image(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": image.Entrypoint, "Cmd": image.Cmd, "Env": image.Env},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{layer.Digest}},
	}, []descriptor{layer}, image.Names...)
}

// image adds an image, whose configuration names the digests of its layers.
func (a *archive) image(configuration map[string]any, layers []descriptor, names ...string) error {
	config, err := a.json(media+"config.v1+json", configuration)
	if err != nil {
		return err
	}
	manifest, err := a.json(media+"manifest.v1+json", map[string]any{
		"schemaVersion": 2, "mediaType": media + "manifest.v1+json", "config": config, "layers": layers,
	})
	if err != nil {
		return err
	}
	for _, name := range names {
		named := manifest
		named.Annotations = map[string]string{"io.containerd.image.name": name,
			"org.opencontainers.image.ref.name": name[strings.LastIndexByte(name, ':')+1:]}
		a.index = append(a.index, named)
	}
	return nil
}

func (a *archive) json(mediaType string, value any) (descriptor, error) {
	data, err := json.Marshal(value)
	if err != nil {
		return descriptor{}, err
	}
	return a.blob(mediaType, data)
}

func (a *archive) blob(mediaType string, data []byte) (descriptor, error) {
	digest := fmt.Sprintf("%x", sha256.Sum256(data))
	d := descriptor{MediaType: mediaType, Digest: "sha256:" + digest, Size: len(data)}
	if a.written[digest] {
		return d, nil
	}
	a.written[digest] = true
	return d, a.file("blobs/sha256/"+digest, data)
}

func (a *archive) file(name string, data []byte) error {
	return put(a.out, tar.Header{Name: name, Mode: 0o644}, data)
}

func (a *archive) finish() error {
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "manifests": a.index})
	if err != nil {
		return err
	}
	if err := a.file("index.json", index); err != nil {
		return err
	}
	if err := a.file("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return err
	}
	return a.out.Close()
}

// layer is the tar of files. The same files produce the same bytes.
func layer(files []File) ([]byte, error) {
	files = slices.Clone(files)
	slices.SortStableFunc(files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	var buffer bytes.Buffer
	w, made := tar.NewWriter(&buffer), map[string]bool{"/": true}
	for _, f := range files {
		if err := directories(w, path.Dir(f.Path), made); err != nil {
			return nil, err
		}
		if made[f.Path] {
			continue // shared libraries come with each program that needs them
		}
		made[f.Path] = true
		if err := f.write(w); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Path, err)
		}
	}
	err := w.Close()
	return buffer.Bytes(), err
}

// directories writes dir and its parents that are missing.
func directories(w *tar.Writer, dir string, made map[string]bool) error {
	if made[dir] {
		return nil
	}
	if err := directories(w, path.Dir(dir), made); err != nil {
		return err
	}
	made[dir] = true
	return File{Path: dir, Mode: os.ModeDir}.write(w)
}

func (f File) write(w *tar.Writer) error {
	h := tar.Header{Name: strings.TrimPrefix(f.Path, "/"), Linkname: f.Link, Mode: int64(f.Mode.Perm())}
	if h.Mode == 0 {
		h.Mode = 0o755
	}
	if f.Mode&os.ModeSticky != 0 {
		h.Mode |= 0o1000
	}
	data := f.Data
	switch {
	case f.Mode.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
	case f.Mode&os.ModeSymlink != 0:
		h.Typeflag = tar.TypeSymlink
	case f.From != "":
		var err error
		if data, err = os.ReadFile(f.From); err != nil {
			return err
		}
	}
	return put(w, h, data)
}

func put(w *tar.Writer, h tar.Header, data []byte) error {
	h.Size, h.ModTime = int64(len(data)), time.Unix(0, 0)
	if err := w.WriteHeader(&h); err != nil {
		return err
	}
	_, err := io.Copy(w, bytes.NewReader(data))
	return err
}
