// Command load copies the images of an archive to the storage that CRI-O has by default, under their names in the
// archive: one of "docker save", or one with an OCI image layout whose index names them for containerd. A name without
// a registry gets the registry localhost there, as with podman. The archive is a file, on standard input, so that it
// need not have a path on the node where this runs.
package main

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.podman.io/image/v5/copy"
	docker "go.podman.io/image/v5/docker/archive"
	"go.podman.io/image/v5/docker/reference"
	"go.podman.io/image/v5/oci/layout"
	"go.podman.io/image/v5/signature"
	"go.podman.io/image/v5/storage"
	"go.podman.io/image/v5/types"
	"go.podman.io/storage/pkg/reexec"
)

func main() {
	if reexec.Init() { // the storage unpacks layers in a process of its own, which is this program
		return
	}
	if err := load(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
}

func load(ctx context.Context) error {
	dir, err := os.MkdirTemp("/var/tmp", "load")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	images, err := ofLayout(dir)
	if errors.Is(err, errNoLayout) {
		reader, openErr := docker.NewReader(nil, "/dev/stdin")
		if openErr != nil {
			return openErr
		}
		defer reader.Close()
		images, err = ofDocker(reader)
	}
	if err != nil {
		return err
	}
	policy, err := signature.NewPolicyContext(&signature.Policy{
		Default: signature.PolicyRequirements{signature.NewPRInsecureAcceptAnything()}})
	if err != nil {
		return err
	}
	for name, image := range images {
		to, err := destination(name)
		if err != nil {
			return err
		}
		if _, err := copy.Image(ctx, policy, to, image, &copy.Options{}); err != nil {
			return fmt.Errorf("image %s: %w", name, err)
		}
	}
	return nil
}

// destination is where an image of that name goes to.
func destination(name string) (types.ImageReference, error) {
	named, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return nil, err
	}
	if short := reference.FamiliarString(named); short != named.String() {
		name = "localhost/" + short
	}
	return storage.Transport.ParseReference(name)
}

// ofDocker returns the images of an archive of "docker save", by name.
func ofDocker(archive *docker.Reader) (map[string]types.ImageReference, error) {
	all, err := archive.List()
	if err != nil {
		return nil, err
	}
	images := map[string]types.ImageReference{}
	for _, names := range all {
		for _, image := range names {
			if image.DockerReference() == nil {
				return nil, errors.New("an image without a name")
			}
			images[image.DockerReference().String()] = image
		}
	}
	return images, nil
}

var errNoLayout = errors.New("the archive has no index.json")

// ofLayout unpacks an archive with an image layout into dir, and returns its images by name. Layers may be missing,
// if the storage has them.
func ofLayout(dir string) (map[string]types.ImageReference, error) {
	for archive := tar.NewReader(os.Stdin); ; {
		file, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if err := unpack(archive, file, dir); err != nil {
			return nil, err
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, imagespec.ImageIndexFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, errNoLayout
	}
	if err != nil {
		return nil, err
	}
	var index imagespec.Index
	if err := json.Unmarshal(text, &index); err != nil {
		return nil, err
	}
	images := map[string]types.ImageReference{}
	for i, m := range index.Manifests {
		name := m.Annotations["io.containerd.image.name"]
		if images[name], err = layout.NewIndexReference(dir, i); err != nil {
			return nil, err
		}
	}
	return images, nil
}

// unpack unpacks a file of an archive, if it is one of an image layout.
func unpack(archive io.Reader, file *tar.Header, dir string) error {
	name := filepath.Clean("/" + file.Name)
	if file.Typeflag != tar.TypeReg || name != "/"+imagespec.ImageIndexFile && !strings.HasPrefix(name, "/blobs/") {
		return nil
	}
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, archive)
	return errors.Join(err, f.Close())
}
