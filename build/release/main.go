// Command release builds the files of a release in out/release/VERSION, or says what is missing for one before anything
// is built. "make release" calls it; docs/release.md lists the files and says how users verify them. The same commit
// produces the same files in every directory.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// release is what is built, from the working copy in the directory root, for architectures by their Go names.
type release struct {
	root, version, key string
	arches             []string
}

func main() {
	r := release{root: "."}
	flag.StringVar(&r.version, "version", "", "semantic version, such as v0.1.0, with a section in CHANGELOG.md")
	flag.StringVar(&r.key, "key", "", "SSH key that signs SHA256SUMS; a public one, if ssh-agent has the private one")
	arches := flag.String("arches", runtime.GOARCH, "architectures of images and programs: amd64, arm64, or both")
	flag.Parse()
	r.arches = strings.Fields(*arches)
	dir, err := r.build()
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
	fmt.Println(dir)
}

// dir is where the complete release is.
func (r release) dir() string { return filepath.Join(r.root, "out/release", r.version) }

// imageDir is where build/image/image.sh puts the image of an architecture.
func (r release) imageDir(arch string) string {
	if arch == runtime.GOARCH {
		return filepath.Join(r.root, "out/image")
	}
	return filepath.Join(r.root, "out/image-"+arch)
}

// programs is where the image's programs are.
func (r release) programs(arch string) string { return filepath.Join(r.imageDir(arch), "programs") }

// build builds the release beside its directory, and renames it once it is complete.
func (r release) build() (dir string, err error) {
	notes, err := r.check()
	if err != nil {
		return "", err
	}
	unfinished := r.dir() + ".unfinished"
	if err := errors.Join(os.RemoveAll(unfinished), os.MkdirAll(unfinished, 0o755)); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(unfinished)) }()
	for _, step := range []func() error{
		r.images,
		func() error { return r.files(unfinished, notes) },
		func() error { return r.imageFiles(unfinished) },
		r.checkClean, // what was changed during the build may be in some files and not in others
		func() error { return writeSums(unfinished) },
		func() error { return sign(unfinished, r.key) },
		func() error { return os.Rename(unfinished, r.dir()) },
	} {
		if err := step(); err != nil {
			return "", err
		}
	}
	return r.dir(), nil
}

// images builds the images and their programs, after removing what earlier builds of other versions left.
func (r release) images() error {
	_, repository, err := r.manifest()
	if err != nil {
		return err
	}
	if err := r.run("build/deps.sh", "image"); err != nil {
		return err
	}
	for _, arch := range r.arches {
		if err := os.RemoveAll(r.imageDir(arch)); err != nil {
			return err
		}
		if err := r.run("env", "VERSION="+r.version, "IMAGE="+repository+":"+r.version, "ARCH="+arch,
			"build/image/image.sh"); err != nil {
			return err
		}
	}
	return nil
}

// run runs a command in the working copy, with its output on stderr.
func (r release) run(name string, args ...string) error {
	c := exec.Command(name, args...)
	c.Dir, c.Stdin, c.Stdout, c.Stderr = r.root, os.Stdin, os.Stderr, os.Stderr
	if err := c.Run(); err != nil {
		return fmt.Errorf("%s: %w", strings.Join(c.Args, " "), err)
	}
	return nil
}

// exists is true also for a path that cannot be examined.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
