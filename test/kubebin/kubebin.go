// Package kubebin builds the module test/kubeparts, a Kubernetes cluster in one program, and keeps it in the cache of
// package onetime: the first build takes minutes.
package kubebin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"

	"github.com/fairlead-cni/fairlead/test/onetime"
)

// source is the module, below the root of the repository.
const source = "test/kubeparts"

// Program is the name of the file: its first argument says which part of Kubernetes it is.
const Program = "kubeparts"

// Get returns the path of the program. It is built if the cache has none for this source and Go version; progress is
// told how that goes. The source is looked for in the directories above the working directory and above this program.
func Get(ctx context.Context, progress io.Writer) (string, error) {
	module, err := Find(source)
	if err != nil {
		return "", err
	}
	content, version, err := read(module)
	if err != nil {
		return "", fmt.Errorf("reading the source of Kubernetes' parts: %w", err)
	}
	key := append(content, runtime.Version()...)
	dir, err := onetime.Get(ctx, Program, key, progress, func(ctx context.Context, dir string, progress io.Writer) error {
		fmt.Fprintf(progress, "%s: Kubernetes %s from %s, 5 to 20 minutes; downloads 200 MB, needs 3 GiB of memory\n",
			Program, version, module)
		return build(ctx, module, version, filepath.Join(dir, Program), progress)
	})
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, Program), nil
}

// Find returns the path of a file or directory of the repository, which it looks for in the directories above the
// working directory and above this program.
func Find(name string) (string, error) {
	cwd, err := os.Getwd()
	if err != nil {
		return "", err
	}
	program, err := os.Executable()
	if err != nil {
		return "", err
	}
	for _, dir := range []string{cwd, filepath.Dir(program)} {
		for ; ; dir = filepath.Dir(dir) {
			// Other repositories have a build and a test, too.
			if exists(filepath.Join(dir, source, "go.mod")) && exists(filepath.Join(dir, name)) {
				return filepath.Join(dir, name), nil
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	return "", fmt.Errorf("no %s above %s, nor above %s: run this in the repository", name, cwd, filepath.Dir(program))
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// read returns all that the build depends on, and the version of Kubernetes.
func read(module string) (content []byte, version string, err error) {
	files, err := filepath.Glob(filepath.Join(module, "*.go"))
	if err != nil {
		return nil, "", err
	}
	goMod := filepath.Join(module, "go.mod")
	for _, file := range append(files, goMod, filepath.Join(module, "go.sum")) {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, "", err
		}
		content = fmt.Appendf(content, "%s %d\n%s", filepath.Base(file), len(data), data)
		if file != goMod {
			continue
		}
		match := regexp.MustCompile(`(?m)^\tk8s\.io/kubernetes (v\S+)$`).FindSubmatch(data)
		if match == nil {
			return nil, "", errors.New(goMod + " requires no k8s.io/kubernetes")
		}
		version = string(match[1])
	}
	return content, version, nil
}

// build writes the program to out. Without the version that it is told by the linker, each part would call itself
// v0.0.0.
func build(ctx context.Context, module, version, out string, progress io.Writer) error {
	stamp := ""
	for _, where := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		stamp += fmt.Sprintf(" -X %s.gitVersion=%s", where, version)
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w"+stamp, "-o", out, ".")
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	var failed bytes.Buffer
	cmd.Stdout, cmd.Stderr = progress, io.MultiWriter(progress, &failed)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, failed.Bytes())
	}
	return nil
}
