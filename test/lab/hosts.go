package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/fairlead-cni/fairlead/test/lab/lab"
)

func nodeCommand(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "node NODE -- CMD [ARG...]",
		Short: "Run a command on a node",
		Long: `Run a command in a node's namespaces. NODE may also be "outside", the host beyond the cluster,
"underlay", which holds the bridge br0 between them all, or in mode bridge "switch" and "router".
The command gets this program's standard streams and signals, and its exit code is the command's.`,
		Example: "  lab node node1 -- ip route\n  lab node outside -- tcpdump -ni eth0",
		Args:    oneThenCommand("NODE"),
		RunE: func(_ *cobra.Command, args []string) error {
			l, err := lab.Open(*dir)
			if err != nil {
				return err
			}
			return l.ExecNode(args[0], args[1:])
		},
	}
}

func podCommand(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "pod NAMESPACE/NAME -- CMD [ARG...]",
		Short: "Run a command in a pod's network namespace",
		Long: `Run a command in the network namespace of a pod, on its node. The command sees the node's files.
It is ended when the pod is.`,
		Example: "  lab pod default/a -- ping -c3 10.77.2.2\n  lab pod default/a -- sh",
		Args:    oneThenCommand("NAMESPACE/NAME"),
		RunE: func(_ *cobra.Command, args []string) error {
			l, err := lab.Open(*dir)
			if err != nil {
				return err
			}
			return l.ExecPod(args[0], args[1:])
		},
	}
}

// oneThenCommand expects the command after "--", so that its flags are not parsed as lab's.
func oneThenCommand(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if cmd.ArgsLenAtDash() != 1 || len(args) < 2 {
			return fmt.Errorf("write: lab %s %s -- CMD [ARG...]", cmd.Name(), what)
		}
		return nil
	}
}

func cniCommand(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "cni NODE ADD|DEL|CHECK|GC|STATUS [NAMESPACE/NAME...]",
		Short: "Call the node's CNI plugins",
		Long: `Call the node's CNI plugins through libcni and print exactly what it returns.

ADD, DEL and CHECK take one pod. One that runs keeps its sandbox: ADD repeats its ADD, and after
DEL the runner leaves it alone until it is deleted. For a pod without a manifest, ADD
makes a sandbox and DEL takes it away. DEL of a pod without a sandbox names an unknown
container. GC says that all sandboxes of the node are valid, except those of the pods
given. STATUS takes no pod.

GC and STATUS came with CNI 1.1.0. In a network of a lower version, which is what the plugins of
Debian 12 allow, a runtime calls neither; here the first plugin, Fairlead, is called alone.`,
		Example: "  lab cni node1 ADD default/byhand\n  lab cni node1 STATUS",
		Args:    cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := lab.Open(*dir)
			if err != nil {
				return err
			}
			out, err := l.CNI(cmd.Context(), args[0], lab.Verb(args[1]), args[2:]...)
			fmt.Fprint(cmd.OutOrStdout(), out)
			if err != nil && out != "" {
				return errTold
			}
			return err
		},
	}
}

func ovsCommand(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "ovs NODE start|stop|kill [vswitchd|ovsdb|guard]",
		Short: "Start or stop a node's Open vSwitch",
		Long: `Start or end the daemons of a node's Open vSwitch, both or the one named. stop is SIGTERM, kill is
SIGKILL. The guard beside them (build/ovs) is there on the kernel's datapath; start starts it as
well, and the others end it only if it is named. A stopped daemon stays down until "start".`,
		Args: cobra.RangeArgs(2, 3),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := lab.Open(*dir)
			if err != nil {
				return err
			}
			var which []lab.Daemon
			if len(args) == 3 {
				which = append(which, lab.Daemon(args[2]))
				if !slices.Contains(lab.Daemons(), which[0]) {
					return fmt.Errorf("%q is none of %v", args[2], lab.Daemons())
				}
			}
			switch args[1] {
			case "start":
				return l.OVSStart(cmd.Context(), args[0], which...)
			case "stop":
				return l.OVSStop(cmd.Context(), args[0], which...)
			case "kill":
				return l.OVSKill(cmd.Context(), args[0], which...)
			default:
				return errUnknownAct(args[1], "start, stop and kill")
			}
		},
	}
}

func errUnknownAct(act, known string) error { return errors.New(`"` + act + `" is none of ` + known) }
