// Package kernel builds the Linux kernel in which tests run as an ordinary program (User-Mode Linux), so that the
// datapath of openvswitch can be tested on a machine whose own kernel does not have it, without virtualisation.
//
// It is built from the newest Linux in Debian's backports, kernel.config and the source changes beside it, once per
// machine (package onetime). If that source is unavailable or does not build, linux-source-6.12 is used instead. Older
// lines of Linux that Debian maintains are built on request, so that tests run on the kernels of nodes.
package kernel

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/test/onetime"
)

//go:embed kernel.config
var config []byte

// monotonic is appended to arch/um/kernel/time.c: a patch would not apply to every line of Linux.
//
//go:embed monotonic.c.txt
var monotonic []byte

// killedFork fixes a panic of Linux 6.12: flush_tlb_mm treated the mark that a fork leaves when its process is killed
// as a mapping. Linux 6.1 and 7 leave no such mark.
//
//go:embed killed-fork.patch
var killedFork []byte

// Override is the environment variable that names another kernel to use, for experiments.
const Override = "FAIRLEAD_UML_KERNEL"

// LineVariable is the environment variable that chooses an older line of Linux, one of Lines. The default is Debian's
// newest.
const LineVariable = "FAIRLEAD_TEST_LINUX"

// Lines returns the lines of Linux that have a package linux-source-X in Debian 12.
func Lines() []string { return []string{"6.1", "6.12"} }

// stable is the line that is used if the newest cannot be built.
const stable = "6.12"

// newer is the one option of kernel.config that older lines lack: newer kernels need it for legacy iptables.
const newer = "CONFIG_NETFILTER_XTABLES_LEGACY=y\n"

// version changes when the build procedure changes, so that the kernel is rebuilt.
const version = "3"

// Get returns the path of the kernel, and builds it if this machine has none yet. The steps and their durations are
// written to progress.
func Get(ctx context.Context, progress io.Writer) (string, error) {
	if path := os.Getenv(Override); path != "" {
		return path, nil
	}
	line, name := os.Getenv(LineVariable), "uml-kernel"
	if line != "" {
		name += "-" + line
	}
	if line != "" && !slices.Contains(Lines(), line) {
		return "", fmt.Errorf("%s=%s: want one of %s, or none for Debian's newest", LineVariable, line,
			strings.Join(Lines(), " and "))
	}
	key := bytes.Join([][]byte{[]byte(version + suite + line), config, monotonic, killedFork}, []byte{0})
	dir, err := onetime.Get(ctx, name, key, progress, func(ctx context.Context, dir string, progress io.Writer) error {
		return build(ctx, line, dir, progress)
	})
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "linux"), nil
}

// build makes dir/linux of that line, or of the newest if line is empty.
func build(ctx context.Context, line, dir string, progress io.Writer) error {
	if err := install(ctx, tools, progress); err != nil {
		return err
	}
	work := filepath.Join(dir, "work")
	var err error
	if line != "" {
		err = buildLine(ctx, line, work, progress)
	} else if err = buildNewest(ctx, work, progress); err != nil && ctx.Err() == nil {
		fmt.Fprintf(progress, "uml-kernel: %v\numl-kernel: building Debian's Linux %s instead, which is slower\n", err, stable)
		err = buildLine(ctx, stable, work, progress)
	}
	if err != nil {
		return err
	}
	err = run(ctx, command{argv: []string{"install", "-s", "-m", "755", work + "/out/linux", dir + "/linux"}})
	return errors.Join(err, os.RemoveAll(work))
}

func buildNewest(ctx context.Context, work string, progress io.Writer) error {
	source, err := newest(ctx, work, progress)
	if err != nil {
		return fmt.Errorf("getting Debian's newest Linux: %w", err)
	}
	return compile(ctx, source, work, progress)
}

func buildLine(ctx context.Context, line, work string, progress io.Writer) error {
	if err := os.RemoveAll(work); err != nil {
		return err
	}
	source := "/usr/src/linux-source-" + line + ".tar.xz"
	if err := install(ctx, []need{{source, "linux-source-" + line}}, progress); err != nil {
		return err
	}
	return compile(ctx, source, work, progress)
}

// compile makes work/out/linux of an archive of Linux.
func compile(ctx context.Context, source, work string, progress io.Writer) error {
	fmt.Fprintln(progress, "uml-kernel: compiling Linux takes 10 minutes on two idle cores, and up to 40 on busy ones")
	tree, out := filepath.Join(work, "tree"), filepath.Join(work, "out")
	if err := os.MkdirAll(tree, 0o755); err != nil {
		return err
	}
	if err := run(ctx, command{argv: []string{"tar", "-C", tree, "--strip-components=1", "-xf", source}}); err != nil {
		return err
	}
	if err := amend(ctx, tree); err != nil {
		return err
	}
	if err := configure(ctx, tree, out); err != nil {
		return err
	}
	return run(ctx, command{dir: tree, out: &compiled{progress: progress},
		argv: []string{"nice", "make", "ARCH=um", "O=" + out, fmt.Sprintf("-j%d", runtime.NumCPU()), "linux"}})
}

// amend adds our changes to the source. Lines before 6.12 do not have the code that killedFork is for.
func amend(ctx context.Context, tree string) error {
	tlb, err := os.ReadFile(filepath.Join(tree, "arch/um/kernel/tlb.c"))
	if err != nil {
		return err
	}
	if bytes.Contains(tlb, []byte("um_tlb_mark_sync")) {
		if err := run(ctx, command{dir: tree, stdin: killedFork, argv: []string{"patch", "-p1"}}); err != nil {
			return err
		}
	}
	path := filepath.Join(tree, "arch/um/kernel/time.c")
	time, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(time, monotonic...), 0o644)
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
		if line != newer && strings.HasSuffix(line, "=y\n") && !bytes.Contains(got, []byte("\n"+line)) {
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
