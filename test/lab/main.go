// Command lab runs the Fairlead nodes of a cluster on one machine, for experiments and for tests. The implementation is
// package lab; this package has the commands and flags.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/uml"
)

const long = `A lab is a cluster on one machine: nodes with namespaces, Open vSwitch, agent and default
paths of their own, an underlay network between them, a host outside, and a runner that
makes and removes pods from manifests as kubelet and a container runtime would.

Needs root and, on Debian, the packages openvswitch-switch, iptables and nftables.
Nothing outside the lab is changed; "lab down" removes everything.`

const example = `  lab up                                    two nodes
  lab apply --wait 30s -f pods.yaml         make pods
  lab status                                nodes and pods
  lab pod default/a -- ping 10.77.2.2       from one pod to another
  lab node node1 -- ovs-ofctl dump-flows br-int
  lab down
  lab --uml -- sh -c 'lab up && lab apply --wait 30s -f pods.yaml && lab status'
  lab --uml --mem 3072 -- ./script.sh`

func main() {
	uml.Init()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	// A second signal ends the program immediately.
	context.AfterFunc(ctx, stop)
	if err := root().ExecuteContext(ctx); err != nil {
		var exit exitCode
		if errors.As(err, &exit) {
			os.Exit(int(exit))
		}
		if !errors.Is(err, errTold) {
			fmt.Fprintln(os.Stderr, "lab:", err)
		}
		os.Exit(1)
	}
}

// errTold ends the program with exit code 1 if the output already has the reason.
var errTold = errors.New("reported already")

func root() *cobra.Command {
	var inUML umlFlags
	cmd := &cobra.Command{
		Use:           "lab",
		Short:         "Run a cluster's worth of Fairlead nodes on this machine",
		Long:          long + "\n\n" + umlHelp,
		Example:       example,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          inUML.args,
		RunE: func(cmd *cobra.Command, args []string) error {
			if inUML.when != "" {
				return inUML.run(cmd, args)
			}
			return cmd.Help()
		},
	}
	inUML.add(cmd)
	cmd.CompletionOptions.DisableDefaultCmd = true
	cmd.TraverseChildren = true // so that --dir and --name are parsed before kubectl, whose flags are not
	dir := cmd.PersistentFlags().String("dir", lab.DefaultDir, "directory of the lab; each lab has its own")
	name := cmd.PersistentFlags().String("name", "", "short for --dir "+lab.DefaultDir+"-NAME")
	cmd.MarkFlagsMutuallyExclusive("dir", "name")
	cmd.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if !cmd.Root().PersistentFlags().Changed("name") {
			return nil
		}
		if msgs := validation.IsDNS1123Label(*name); len(msgs) > 0 {
			return fmt.Errorf("--name %q: %s", *name, strings.Join(msgs, "; "))
		}
		*dir = lab.DefaultDir + "-" + *name
		return nil
	}
	cmd.AddCommand(upCommand(dir), downCommand(dir), statusCommand(dir), getCommand(dir),
		applyCommand(dir), deleteCommand(dir), nodeCommand(dir), podCommand(dir),
		agentCommand(dir), crashCommand(dir), rebootCommand(dir),
		ovsCommand(dir), cniCommand(dir), traceCommand(dir), runnerCommand(dir),
		kubectlCommand(dir), controlPlaneCommand(dir), kubeProxyCommand(dir), daemonCommand(dir))
	return cmd
}
