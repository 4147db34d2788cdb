// Command fairleadctl examines a cluster that Fairlead serves, for people; it is
// "kubectl fairlead" as well. This file has the root command and the exit codes;
// flags.go has what commands share, and each other file a command.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set by the linker.
var version = "dev"

// Exit codes.
const (
	exitError   = 1
	exitUsage   = 2
	exitWarning = 3
	exitFailing = 4
)

// found is what a command has found and told: it says how bad that is and no more.
type found struct{ code int }

func (f found) Error() string { return fmt.Sprintf("exit code %d", f.code) }

// usageError is a mistake in the arguments.
type usageError struct{ error }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	name := calledAs(os.Args[0])
	err := command(name).ExecuteContext(ctx)
	if err == nil {
		return
	}
	told, usage := found{}, usageError{}
	switch {
	case errors.As(err, &told):
		os.Exit(told.code)
	case errors.As(err, &usage):
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(exitUsage)
	}
	fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
	os.Exit(exitError)
}

// calledAs is what people type: "kubectl fairlead" where it is kubectl's plugin
// (https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/).
func calledAs(argv0 string) string {
	if plugin, ok := strings.CutPrefix(filepath.Base(argv0), "kubectl-"); ok {
		return "kubectl " + plugin
	}
	return "fairleadctl"
}

// command is the root; name is what it is called as.
func command(name string) *cobra.Command {
	var conn connection
	var node localNode
	c := &cobra.Command{
		Use:         "fairleadctl",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: name},
		Short:       "Examines a cluster that runs Fairlead",
		Long: `fairleadctl examines a cluster that runs Fairlead, and the node that it runs on. It reads
the Kubernetes API with your kubeconfig, from anywhere. On a node it also queries the
agent and Open vSwitch, which needs root. These commands change something:
"ipam release", "ipam import-antrea", "uplink restore" and "uninstall".

Exit codes: 0 no findings, 1 a check could not run, 2 invalid arguments, 3 warnings: all
nodes serve pods, 4 some pods or nodes have no working network, or a plan does not fit.`,
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	conn.add(c)
	node.add(c)
	c.AddCommand(statusCommand(&conn, &node), ipamCommand(&conn), doctorCommand(&conn, &node), planCommand(),
		uplinkCommand(&node), traceCommand(&conn, &node), uninstallCommand(&conn))
	c.CompletionOptions.HiddenDefaultCmd = true
	rename(c, name)
	return c
}

// rename has help texts name the program as it is called.
func rename(c *cobra.Command, name string) {
	c.Long, c.Example = strings.ReplaceAll(c.Long, "fairleadctl", name), strings.ReplaceAll(c.Example, "fairleadctl", name)
	for _, sub := range c.Commands() {
		rename(sub, name)
	}
}

// parent is a command that only has others.
func parent(use, short, long string, subs ...*cobra.Command) *cobra.Command {
	var names []string
	for _, s := range subs {
		names = append(names, s.Name())
	}
	c := &cobra.Command{Use: use, Short: short, Long: long, Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("%s: unknown command %q: want %s", c.CommandPath(), args[0], strings.Join(names, ", "))}
			}
			return usageError{fmt.Errorf("%s: missing command: want %s", c.CommandPath(), strings.Join(names, ", "))}
		}}
	c.AddCommand(subs...)
	return c
}

// noArgs is an Args of cobra.
func noArgs(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("%q: %s takes no arguments, only flags", args[0], c.CommandPath())}
	}
	return nil
}
