package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead-cni/fairlead/test/lab/vswitch"
	"github.com/fairlead-cni/fairlead/test/uml"
	"github.com/fairlead-cni/fairlead/test/uml/kernel"
)

const umlHelp = `With --uml, lab runs a command or script in a Linux kernel of its own (User-Mode Linux),
which has the module openvswitch where this machine's has not. Labs in there use the
kernel's datapath. It needs neither root nor virtualisation. The command finds this
machine's files; what it writes is gone at its end, except in --write directories. The
kernel is built at the first use, some 10 minutes on two cores.`

// umlFlags are the options of a command in User-Mode Linux.
type umlFlags struct {
	when     string // always, auto or empty
	verbose  bool
	memory   int
	timeout  time.Duration
	writable []string
}

const (
	always = "always"
	auto   = "auto" // if this kernel has no openvswitch
)

func (f *umlFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.when, "uml", "", "run the command after -- in User-Mode Linux; =auto: if this kernel has no openvswitch")
	flags.Lookup("uml").NoOptDefVal = always
	flags.IntVar(&f.memory, "mem", 2048, "with --uml: memory in MiB; only what is used is allocated")
	flags.DurationVar(&f.timeout, "uml-timeout", 0, "with --uml: end the command after this time (default: no limit)")
	flags.StringArrayVar(&f.writable, "write", nil, "with --uml: a directory that the command may write to; repeatable")
	flags.BoolVar(&f.verbose, "uml-log", false, "with --uml: show the kernel's log")
}

// args accepts a command after --, and nothing without --uml.
func (f *umlFlags) args(cmd *cobra.Command, args []string) error {
	if f.when == "" {
		return cobra.NoArgs(cmd, args)
	}
	if f.when != always && f.when != auto {
		return fmt.Errorf("--uml=%s: there are %s and %s", f.when, always, auto)
	}
	if cmd.ArgsLenAtDash() != 0 {
		return errors.New("write: lab --uml -- CMD, or lab --uml -- SCRIPT")
	}
	return nil
}

// exitCode ends the program with that code.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// run runs argv in User-Mode Linux, and returns its exit code as an error unless that is 0.
func (f *umlFlags) run(cmd *cobra.Command, argv []string) error {
	if len(argv) == 0 {
		return errors.New("write: lab --uml -- CMD, or lab --uml -- SCRIPT")
	}
	if f.when == auto && vswitch.KernelDatapath() == nil {
		return here(argv)
	}
	c, err := f.command(cmd.Context(), argv)
	if err != nil {
		return err
	}
	exit, err := uml.Run(cmd.Context(), c)
	if err == nil && exit != 0 {
		return exitCode(exit)
	}
	return err
}

func (f *umlFlags) command(ctx context.Context, argv []string) (uml.Command, error) {
	if os.Getenv(uml.Inside) != "" {
		return uml.Command{}, errors.New("this already is User-Mode Linux: --uml does not work in it")
	}
	path, err := kernel.Get(ctx, os.Stderr)
	if err != nil {
		return uml.Command{}, err
	}
	dir, err := os.Getwd()
	if err != nil {
		return uml.Command{}, err
	}
	self, err := os.Executable()
	if err != nil {
		return uml.Command{}, err
	}
	c := uml.Command{Kernel: path, Argv: withShell(argv), Dir: dir, Stdout: os.Stdout, Stderr: os.Stderr,
		Note: os.Stderr,
		// lab itself is found by its name, and programs that only root has in the PATH.
		Env:      append(os.Environ(), "PATH="+filepath.Dir(self)+":"+os.Getenv("PATH")+":/usr/sbin:/sbin"),
		Writable: f.writable, Memory: f.memory, Timeout: f.timeout}
	if f.verbose {
		c.Log = os.Stderr
	}
	return c, nil
}

// here replaces this process with the command, as in User-Mode Linux.
func here(argv []string) error {
	argv = withShell(argv)
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return err
	}
	return fmt.Errorf("starting %s: %w", path, syscall.Exec(path, argv, os.Environ()))
}

// withShell runs a script with sh, as shells do, if it is not executable or has no #! line.
func withShell(argv []string) []string {
	info, err := os.Stat(argv[0])
	if err != nil || !info.Mode().IsRegular() {
		return argv
	}
	begin := make([]byte, 4)
	if f, err := os.Open(argv[0]); err == nil {
		_, _ = f.Read(begin)
		f.Close()
	}
	program := string(begin) == "\x7fELF" || string(begin[:2]) == "#!"
	if program && info.Mode()&0o111 != 0 {
		return argv
	}
	return append([]string{"sh"}, argv...)
}
