package main

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// sbomPath is the path of the SBOM in the image.
const sbomPath = "usr/share/fairlead/sbom.cdx.json"

// manifest and imageConfig have the fields of a docker archive that are used here
// (https://github.com/moby/docker-image-spec).
type manifest struct {
	Config   string
	RepoTags []string
	Layers   []string
}

type imageConfig struct {
	History []struct {
		CreatedBy string `json:"created_by"`
		Empty     bool   `json:"empty_layer"`
	} `json:"history"`
}

// printLayers prints the layers, the lowest first, and writes the SBOM into dir if it is not empty.
func printLayers(out io.Writer, archive, dir string) error {
	var all []manifest
	if err := readJSON(archive, "manifest.json", &all); err != nil {
		return err
	}
	if len(all) != 1 {
		return fmt.Errorf("%s has %d images, not one", archive, len(all))
	}
	var config imageConfig
	if err := readJSON(archive, all[0].Config, &config); err != nil {
		return err
	}
	var by []string
	for _, h := range config.History {
		if !h.Empty {
			by = append(by, h.CreatedBy)
		}
	}
	total := int64(0)
	for i, layer := range all[0].Layers {
		size, sbom, err := readLayer(archive, layer)
		if err != nil {
			return err
		}
		total += size
		what := "?"
		if i < len(by) {
			what = strings.TrimPrefix(by[i], "/bin/sh -c ")
		}
		fmt.Fprintf(out, "%8.1f MB  %s\n", mega(size), shorten(what, 90))
		if sbom == nil || dir == "" {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(sbomPath)), sbom, 0o644); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "%8.1f MB  %s: %s\n", mega(total), archive, strings.Join(all[0].RepoTags, " "))
	return nil
}

func mega(bytes int64) float64 { return float64(bytes) / 1e6 }

func shorten(s string, n int) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > n {
		return s[:n] + "..."
	}
	return s
}

// readJSON decodes the member of that name.
func readJSON(archive, name string, into any) error {
	err := member(archive, name, func(r io.Reader, _ int64) error { return json.NewDecoder(r).Decode(into) })
	if err != nil {
		return fmt.Errorf("%s of %s: %w", name, archive, err)
	}
	return nil
}

// readLayer returns a layer's uncompressed size, and the SBOM if the layer contains it.
func readLayer(archive, name string) (size int64, sbom []byte, err error) {
	err = member(archive, name, func(r io.Reader, n int64) error {
		size = n
		for t := tar.NewReader(r); ; {
			h, err := t.Next()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			if strings.TrimPrefix(h.Name, "./") == sbomPath {
				if sbom, err = io.ReadAll(t); err != nil {
					return err
				}
			}
		}
	})
	if err != nil {
		return 0, nil, fmt.Errorf("layer %s of %s: %w", name, archive, err)
	}
	return size, sbom, nil
}

// member calls do with the member of that name.
func member(archive, name string, do func(io.Reader, int64) error) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	for t := tar.NewReader(f); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return errors.New("no such file")
		}
		if err != nil {
			return err
		}
		if h.Name == name {
			return do(t, h.Size)
		}
	}
}
