package ociimage

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// Extend writes an archive of the image in the archive base, with another tag and with further files, which replace
// those of the same path. base has one image, uncompressed, in the format of "docker save". The result contains what
// base does not: import base first.
func Extend(path, base, tag string, files []File) error {
	below, err := readBase(base)
	if err != nil {
		return fmt.Errorf("reading %s: %w", base, err)
	}
	return write(path, func(a *archive) error { return a.extend(below, below.repository+":"+tag, files) })
}

// saved is an image that "docker save" wrote.
type saved struct {
	repository string // the image's name, without a tag
	config     map[string]any
	layers     []descriptor
}

func readBase(path string) (saved, error) {
	f, err := os.Open(path)
	if err != nil {
		return saved{}, err
	}
	defer f.Close()
	small, sizes := map[string][]byte{}, map[string]int{}
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return saved{}, err
		}
		sizes[h.Name] = int(h.Size)
		if strings.HasSuffix(h.Name, ".json") {
			if small[h.Name], err = io.ReadAll(r); err != nil {
				return saved{}, err
			}
		}
	}
	var manifest []struct {
		Config           string
		RepoTags, Layers []string
	}
	if err := json.Unmarshal(small["manifest.json"], &manifest); err != nil || len(manifest) != 1 || len(manifest[0].RepoTags) == 0 {
		return saved{}, fmt.Errorf("manifest.json lists %d images, want one with a name (an archive of \"docker save\"): %w", len(manifest), err)
	}
	s := saved{repository: manifest[0].RepoTags[0][:strings.LastIndexByte(manifest[0].RepoTags[0], ':')]}
	for _, l := range manifest[0].Layers { // named by their digests
		s.layers = append(s.layers, descriptor{MediaType: media + "layer.v1.tar",
			Digest: "sha256:" + strings.TrimSuffix(l, ".tar"), Size: sizes[l]})
	}
	return s, json.Unmarshal(small[manifest[0].Config], &s.config)
}

func (a *archive) extend(below saved, name string, files []File) error {
	data, err := layer(files)
	if err != nil {
		return err
	}
	top, err := a.blob(media+"layer.v1.tar", data)
	if err != nil {
		return err
	}
	layers := append(below.layers, top)
	var digests []string
	for _, l := range layers {
		digests = append(digests, l.Digest)
	}
	below.config["rootfs"] = map[string]any{"type": "layers", "diff_ids": digests}
	delete(below.config, "history") // it has to have an entry for each layer, or none
	return a.image(below.config, layers, name)
}
