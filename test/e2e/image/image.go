// Package image writes container images of a single static program: what pods of tests run needs no base image, and
// none could be pulled.
package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// descriptor points to a blob, as the OCI image specification has it (descriptor.md).
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Media types of the OCI image specification.
const (
	indexType    = "application/vnd.oci.image.index.v1+json"
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	configType   = "application/vnd.oci.image.config.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar"
)

// Write writes an archive (image-layout.md, in a tar file) of an image called name to file. It holds the program, a
// static executable for this machine, as its entry point, and the directories that a container wants.
func Write(file, name, program string) error {
	layer, err := layerOf(program)
	if err != nil {
		return fmt.Errorf("making image %s: %w", name, err)
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	if err := errors.Join(write(out, name, "/"+filepath.Base(program), layer), out.Close()); err != nil {
		return fmt.Errorf("writing image %s to %s: %w", name, file, err)
	}
	return nil
}

func write(out io.Writer, name, entry string, layer []byte) error {
	blobs := map[string][]byte{}
	layerAt := add(blobs, layerType, layer)
	config, err := addJSON(blobs, configType, map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{entry}, "Env": []string{"PATH=/"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{layerAt.Digest}},
	})
	if err != nil {
		return err
	}
	manifest, err := addJSON(blobs, manifestType, map[string]any{
		"schemaVersion": 2, "mediaType": manifestType, "config": config, "layers": []descriptor{layerAt},
	})
	if err != nil {
		return err
	}
	// The first is what containerd calls it, the second the specification's tag.
	manifest.Annotations = map[string]string{"io.containerd.image.name": name,
		"org.opencontainers.image.ref.name": name[strings.LastIndexByte(name, ':')+1:]}
	index, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": indexType, "manifests": []descriptor{manifest}})
	if err != nil {
		return err
	}
	archive := tar.NewWriter(out)
	files := map[string][]byte{"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`), "index.json": index}
	for digest, blob := range blobs {
		files["blobs/sha256/"+strings.TrimPrefix(digest, "sha256:")] = blob
	}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		if err := addFile(archive, path, 0o644, files[path]); err != nil {
			return err
		}
	}
	return archive.Close()
}

// layerOf is the one layer: the program, and empty directories.
func layerOf(program string) ([]byte, error) {
	content, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	var layer bytes.Buffer
	archive := tar.NewWriter(&layer)
	for _, dir := range []struct {
		name string
		mode int64
	}{{"dev/", 0o755}, {"etc/", 0o755}, {"proc/", 0o755}, {"sys/", 0o755}, {"tmp/", 0o1777}, {"var/", 0o755}} {
		header := &tar.Header{Name: dir.name, Typeflag: tar.TypeDir, Mode: dir.mode, ModTime: time.Unix(0, 0)}
		if err := archive.WriteHeader(header); err != nil {
			return nil, err
		}
	}
	if err := addFile(archive, filepath.Base(program), 0o755, content); err != nil {
		return nil, err
	}
	if err := archive.Close(); err != nil {
		return nil, err
	}
	return layer.Bytes(), nil
}

func addFile(archive *tar.Writer, name string, mode int64, content []byte) error {
	err := archive.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: mode, Size: int64(len(content)),
		ModTime: time.Unix(0, 0)})
	if err == nil {
		_, err = archive.Write(content)
	}
	return err
}

func add(blobs map[string][]byte, mediaType string, content []byte) descriptor {
	sum := sha256.Sum256(content)
	digest := "sha256:" + hex.EncodeToString(sum[:])
	blobs[digest] = content
	return descriptor{MediaType: mediaType, Digest: digest, Size: int64(len(content))}
}

func addJSON(blobs map[string][]byte, mediaType string, value any) (descriptor, error) {
	content, err := json.Marshal(value)
	return add(blobs, mediaType, content), err
}
