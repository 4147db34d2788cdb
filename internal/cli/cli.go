// Package cli has what Fairlead's programs share: handling of signals, exit codes, and invalid arguments.
package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
)

// Exit codes common to all programs.
const (
	ExitError = 1
	ExitUsage = 2
)

// UsageError is an error in arguments, flags or the config file: exit code 2.
type UsageError struct{ error }

func (e UsageError) Unwrap() error { return e.error }

// Usage marks err as a UsageError.
func Usage(err error) error { return UsageError{err} }

// ExitCode is the error of a command that has already printed its findings: only the exit code is left.
type ExitCode int

func (c ExitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// Code is the exit code for what a command returns.
func Code(err error) int {
	code, usage := ExitCode(0), UsageError{}
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	case errors.As(err, &usage):
		return ExitUsage
	}
	return ExitError
}

// Main runs a program: SIGTERM and SIGINT end its context, an error goes to stderr after the program's name, and code
// determines the exit code, Code by default.
func Main(name string, c *cobra.Command, code func(error) int) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	err := c.ExecuteContext(ctx)
	if err == nil {
		return
	}
	if !errors.As(err, new(ExitCode)) {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
	}
	stop()
	os.Exit(code(err))
}

// Root makes c the root command of a program: it prints neither usage nor errors by itself, and wrong flags are a
// UsageError.
func Root(c *cobra.Command, version string) *cobra.Command {
	c.Version, c.SilenceUsage, c.SilenceErrors = version, true, true
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return Usage(err) })
	return c
}

// Verbosity adds klog's flag -v.
func Verbosity(c *cobra.Command) {
	verbosity := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(verbosity)
	c.Flags().AddGoFlag(verbosity.Lookup("v"))
}

// FlagsOnly is cobra's Args of a command that takes only flags.
func FlagsOnly(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return Usage(fmt.Errorf("%q: %s takes no arguments, only flags", args[0], c.CommandPath()))
	}
	return nil
}
