// Package kernel builds the Linux kernel in which tests run as an ordinary program (User-Mode Linux), so that the
// datapath of openvswitch can be tested on a machine whose own kernel does not have it, without virtualisation.
//
// It is built from Debian's package linux-source-6.12, kernel.config and the patches beside it, once on a machine:
// package onetime keeps it.
package kernel

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/fairlead-cni/fairlead/test/onetime"
)

//go:embed kernel.config
var config []byte

//go:embed monotonic.patch
var monotonic []byte

// killedFork fixes a panic: flush_tlb_mm treated the mark that a fork leaves when its process is killed as a mapping.
//
//go:embed killed-fork.patch
var killedFork []byte

// Override in the environment names another kernel to use, for experiments.
const Override = "FAIRLEAD_UML_KERNEL"

const source = "/usr/src/linux-source-6.12.tar.xz"

// version changes when the build procedure changes, so that the kernel is rebuilt.
const version = "1"

// Get returns the path of the kernel, and builds it if this machine has none yet. The steps and their durations are
// written to progress.
func Get(ctx context.Context, progress io.Writer) (string, error) {
	if path := os.Getenv(Override); path != "" {
		return path, nil
	}
	key := bytes.Join([][]byte{[]byte(version + source), config, monotonic, killedFork}, []byte{0})
	dir, err := onetime.Get(ctx, "uml-kernel", key, progress, build)
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "linux"), nil
}

func build(ctx context.Context, dir string, progress io.Writer) error {
	if err := install(ctx, progress); err != nil {
		return err
	}
	fmt.Fprintln(progress, "uml-kernel: compiling Linux takes 10 minutes on two idle cores, and up to 40 on busy ones")
	tree, out := filepath.Join(dir, "tree"), filepath.Join(dir, "out")
	if err := os.Mkdir(tree, 0o755); err != nil {
		return err
	}
	if err := run(ctx, command{argv: []string{"tar", "-C", tree, "--strip-components=1", "-xf", source}}); err != nil {
		return err
	}
	for _, patch := range [][]byte{monotonic, killedFork} {
		if err := run(ctx, command{dir: tree, stdin: patch, argv: []string{"patch", "-p1"}}); err != nil {
			return err
		}
	}
	if err := configure(ctx, tree, out); err != nil {
		return err
	}
	err := run(ctx, command{dir: tree, out: &compiled{progress: progress},
		argv: []string{"nice", "make", "ARCH=um", "O=" + out, fmt.Sprintf("-j%d", runtime.NumCPU()), "linux"}})
	if err != nil {
		return err
	}
	err = run(ctx, command{argv: []string{"install", "-s", "-m", "755", filepath.Join(out, "linux"), filepath.Join(dir, "linux")}})
	if err != nil {
		return err
	}
	for _, d := range []string{tree, out} {
		if err := os.RemoveAll(d); err != nil {
			return err
		}
	}
	return nil
}

// configure writes the configuration, and verifies that it has all of kernel.config: options that depend on a disabled
// one are dropped silently.
func configure(ctx context.Context, tree, out string) error {
	if err := run(ctx, command{dir: tree, argv: []string{"make", "-s", "ARCH=um", "O=" + out, "defconfig"}}); err != nil {
		return err
	}
	path := filepath.Join(out, ".config")
	base, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, append(base, config...), 0o644); err != nil {
		return err
	}
	if err := run(ctx, command{dir: tree, argv: []string{"make", "-s", "ARCH=um", "O=" + out, "olddefconfig"}}); err != nil {
		return err
	}
	got, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(config)) {
		if strings.HasSuffix(line, "=y\n") && !bytes.Contains(got, []byte("\n"+line)) {
			return fmt.Errorf("this source's configuration has no %s", strings.TrimSpace(line))
		}
	}
	return nil
}

// command is one step of the build.
type command struct {
	dir   string
	stdin []byte
	out   io.Writer // nil: discarded
	argv  []string
}

// run runs a step and returns an error with the end of its output.
func run(ctx context.Context, c command) error {
	cmd := exec.CommandContext(ctx, c.argv[0], c.argv[1:]...)
	var said bytes.Buffer
	cmd.Dir, cmd.Stdin, cmd.Stdout = c.dir, bytes.NewReader(c.stdin), &said
	if c.out != nil {
		cmd.Stdout = io.MultiWriter(&said, c.out)
	}
	cmd.Stderr = cmd.Stdout
	cmd.Env = append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	endWithUs(cmd)
	if err := cmd.Run(); err != nil {
		lines := strings.Split(strings.TrimSpace(said.String()), "\n")
		return fmt.Errorf("%s: %w\n%s", strings.Join(c.argv, " "), err, strings.Join(lines[max(0, len(lines)-20):], "\n"))
	}
	return nil
}

// compiled reports the progress of make.
type compiled struct {
	progress io.Writer
	files    int
}

func (c *compiled) Write(p []byte) (int, error) {
	for range bytes.Count(p, []byte("  CC  ")) {
		if c.files++; c.files%200 == 0 {
			fmt.Fprintf(c.progress, "uml-kernel: %d of some 1400 files\n", c.files)
		}
	}
	return len(p), nil
}
