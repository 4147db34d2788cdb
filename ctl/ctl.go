// Package ctl implements the commands of fairleadctl, with which users examine a cluster. This file has the root
// command, flags.go what the commands share, and each other file one command.
package ctl

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fairlead-cni/fairlead/internal/cli"
)

// Exit codes of findings. The others are package cli's.
const (
	exitWarning = 3
	exitFailing = 4
)

// CalledAs is the command that users type: "kubectl fairlead" if this is kubectl's plugin
// (https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/).
func CalledAs(argv0 string) string {
	if plugin, ok := strings.CutPrefix(filepath.Base(argv0), "kubectl-"); ok {
		return "kubectl " + plugin
	}
	return "fairleadctl"
}

// Command is the root; name is the command that users type.
func Command(name, version string) *cobra.Command {
	var node localNode
	conn := connection{version: version, node: &node}
	c := cli.Root(&cobra.Command{
		Use:         "fairleadctl",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: name},
		Short:       "Examines a cluster that runs Fairlead",
		Long: `fairleadctl examines a cluster that runs Fairlead, and the node that it runs on. It reads
the Kubernetes API with your kubeconfig, from anywhere. On a node it also queries the
agent and Open vSwitch, which needs root. These commands make changes:
"ipam release", "ipam import-antrea", "uplink restore" and "uninstall".

Exit codes: 0 no findings, 1 a check could not run, 2 invalid arguments, 3 warnings: all
nodes serve pods, 4 some pods or nodes have no working network, or a plan does not fit.`,
	}, version)
	conn.add(c)
	node.add(c)
	c.AddCommand(statusCommand(&conn, &node), ipamCommand(&conn), doctorCommand(&conn, &node), planCommand(),
		uplinkCommand(&conn, &node), traceCommand(&conn, &node), captureCommand(&conn, &node), reachCommand(&conn, &node),
		serviceCommand(&conn, &node), policyCommand(&conn, &node), uninstallCommand(&conn))
	c.CompletionOptions.HiddenDefaultCmd = true
	rename(c, name)
	return c
}

// rename replaces the program's name in help texts.
func rename(c *cobra.Command, name string) {
	c.Long, c.Example = strings.ReplaceAll(c.Long, "fairleadctl", name), strings.ReplaceAll(c.Example, "fairleadctl", name)
	for _, sub := range c.Commands() {
		rename(sub, name)
	}
}

// parent is a command that only has subcommands.
func parent(use, short, long string, subs ...*cobra.Command) *cobra.Command {
	var names []string
	for _, s := range subs {
		names = append(names, s.Name())
	}
	c := &cobra.Command{Use: use, Short: short, Long: long, Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cli.Usage(fmt.Errorf("%s: unknown command %q: want %s", c.CommandPath(), args[0], strings.Join(names, ", ")))
			}
			return cli.Usage(fmt.Errorf("%s: missing command: want %s", c.CommandPath(), strings.Join(names, ", ")))
		}}
	c.AddCommand(subs...)
	return c
}
