package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

const chartDir = "build/charts/fairlead"

// files writes everything except the images and the sums into dir. The programs have been built already.
func (r release) files(dir, notes string) error {
	chart, err := r.chart()
	if err != nil {
		return err
	}
	manifest, _, err := r.manifest()
	if err != nil {
		return err
	}
	for name, text := range map[string][]byte{"fairlead-" + r.version + ".tgz": chart, "fairlead.yaml": manifest,
		"RELEASE-NOTES.md": []byte(notes)} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return err
		}
	}
	licences := filepath.Join(r.programs(r.arches[0]), "usr/share/fairlead/LICENCES.txt") // the same for all architectures
	if err := copyFile(licences, filepath.Join(dir, "LICENCES.txt"), 0o644); err != nil {
		return err
	}
	for _, arch := range r.arches {
		if err := r.program(dir, arch); err != nil {
			return err
		}
	}
	return nil
}

// program writes fairleadctl for an architecture, and its SBOM.
func (r release) program(dir, arch string) error {
	name := "fairleadctl-linux-" + arch
	from := filepath.Join(r.programs(arch), "usr/local/bin/fairleadctl")
	if err := copyFile(from, filepath.Join(dir, name), 0o755); err != nil {
		return err
	}
	// Run in dir, so that the SBOM has the program's name and no path of this machine.
	bom, err := filepath.Abs(filepath.Join(r.programs(arch), "tmp/bom"))
	if err != nil {
		return err
	}
	return release{root: dir}.run(bom, "sbom", "-root", "", "-version", r.version, "-o", name+".cdx.json", name)
}

// imageFiles copies the images and their SBOMs.
func (r release) imageFiles(dir string) (err error) {
	for _, arch := range r.arches {
		image, name := r.imageDir(arch), "fairlead-image-"+r.version+"-linux-"+arch
		err = errors.Join(err, copyFile(filepath.Join(image, "fairlead.tar"), filepath.Join(dir, name+".tar"), 0o644),
			copyFile(filepath.Join(image, "sbom.cdx.json"), filepath.Join(dir, name+".cdx.json"), 0o644))
	}
	return err
}

func copyFile(from, to string, mode os.FileMode) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, text, mode)
}

// manifest is the plain manifest with the release's image, and that image's repository.
func (r release) manifest() (text []byte, repository string, err error) {
	text, err = os.ReadFile(filepath.Join(r.root, "build/manifests/fairlead.yaml"))
	if err != nil {
		return nil, "", err
	}
	image := regexp.MustCompile(`(?m)^( +image: )(\S+):dev$`)
	found := image.FindSubmatch(text)
	if found == nil {
		return nil, "", errors.New("build/manifests/fairlead.yaml has no image with the tag dev: make manifests")
	}
	return image.ReplaceAll(text, []byte("${1}${2}:"+r.version)), string(found[2]), nil
}

// chart is the chart as Helm packages it, except that all files have the same timestamp.
func (r release) chart() ([]byte, error) {
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	t := tar.NewWriter(zip)
	base := filepath.Join(r.root, chartDir)
	err := filepath.WalkDir(base, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasPrefix(d.Name(), ".") { // .helmignore
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(base, path)
		if err != nil {
			return err
		}
		if name == "Chart.yaml" {
			text = regexp.MustCompile(`(?m)^(version|appVersion): .*$`).ReplaceAll(text, []byte("${1}: "+r.version))
		}
		h := tar.Header{Name: "fairlead/" + name, Mode: 0o644, Size: int64(len(text)), ModTime: time.Unix(0, 0)}
		if err := t.WriteHeader(&h); err != nil {
			return err
		}
		_, err = t.Write(text)
		return err
	})
	err = errors.Join(err, t.Close(), zip.Close())
	return out.Bytes(), err
}

// writeSums writes SHA256SUMS with all files in dir, for sha256sum(1).
func writeSums(dir string) error {
	entries, err := os.ReadDir(dir) // sorted
	if err != nil {
		return err
	}
	var sums strings.Builder
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(text), e.Name())
	}
	return os.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte(sums.String()), 0o644)
}

// sign writes SHA256SUMS.sig (ssh-keygen(1), -Y sign), if there is a key.
func sign(dir, key string) error {
	if key == "" {
		return nil
	}
	c := exec.Command("ssh-keygen", "-Y", "sign", "-f", key, "-n", "file", filepath.Join(dir, "SHA256SUMS"))
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stderr, os.Stderr // it may ask for a passphrase
	if err := c.Run(); err != nil {
		return fmt.Errorf("signing with %s: %w", key, err)
	}
	return nil
}
