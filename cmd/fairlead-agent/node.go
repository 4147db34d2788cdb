package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/fairlead-cni/fairlead/agent"
	"github.com/fairlead-cni/fairlead/cniserver/conflist"
)

func installCNICommand() *cobra.Command {
	var chained string
	plugins := conflist.Plugins{Kept: conflist.DefaultKept}
	c := &cobra.Command{
		Use:   "install-cni",
		Short: "Installs the CNI plugins on this node, for an init container",
		Long: `Copies Fairlead's CNI plugin to the directory of the container runtime's plugins, under the
names fairlead and antrea, and the reference plugins portmap and bandwidth where the node has none,
or older ones. A file is replaced in one step, also while the runtime executes it, and only if it
differs. Of what was there before a copy is kept in ` + conflist.DefaultKept + `;
"fairlead-agent uninstall" puts it back.

In a container that directory and --bin-dir have to be the node's.`,
		Args: flagsOnly("install-cni"),
		RunE: func(c *cobra.Command, _ []string) error {
			return installCNI(c.Context(), c.OutOrStdout(), plugins, chained)
		},
	}
	c.Flags().StringVar(&plugins.BinDir, "bin-dir", conflist.DefaultBinDir, "where the runtime looks for plugins")
	c.Flags().StringVar(&chained, "plugins", "/usr/local/lib/cni",
		"the directory with portmap and bandwidth; empty: leave the node's alone")
	return c
}

func installCNI(ctx context.Context, out io.Writer, plugins conflist.Plugins, chained string) error {
	from := shim(klog.Background())
	if from == "" {
		return errors.New("the CNI plugin fairlead is not beside fairlead-agent: this installation is not complete")
	}
	changed, err := plugins.InstallShim(from)
	if err != nil {
		return err
	}
	if changed {
		fmt.Fprintf(out, "installed in %s: fairlead, also as antrea\n", plugins.BinDir)
	}
	var did []string
	if chained != "" {
		did, err = plugins.InstallChained(ctx, chained)
	}
	for _, d := range did {
		changed = true
		fmt.Fprintf(out, "installed in %s: %s\n", plugins.BinDir, d)
	}
	if err == nil && !changed {
		fmt.Fprintf(out, "%s has all plugins\n", plugins.BinDir)
	}
	return err
}

func uninstallCommand() *cobra.Command {
	o := agent.UninstallOptions{Log: klog.Background()}
	stay := false
	c := &cobra.Command{
		Use:   "uninstall",
		Short: "Takes Fairlead from this node and restores what it has changed",
		Long: `Takes from this node all that agents have put there: the CNI network configuration and plugins,
the node's NIC as a port of Open vSwitch, bridges, routes, iptables chains, the pods' interfaces, and
all files. The NIC, its addresses and routes, and plugins that were replaced come back as they were.
Only forwarding stays switched on.

Stop the agent first, for good: delete its DaemonSet. Pods of this node lose their network; delete
them when another one is installed. Let Open vSwitch run until this is done; where it does not, its
database is changed without it.

It may be ended and repeated at any time, and needs no config and no Kubernetes.
Exit codes: 0 nothing is left, 1 something is left and named, 2 a mistake in the flags.`,
		Args: flagsOnly("uninstall"),
		RunE: func(c *cobra.Command, _ []string) error {
			if os.Geteuid() != 0 {
				return errors.New("this needs root")
			}
			o.Out = c.OutOrStdout()
			if err := agent.Uninstall(c.Context(), o); err != nil || !stay {
				return err
			}
			fmt.Fprintln(o.Out, "waiting to be stopped (--stay)")
			<-c.Context().Done()
			return nil
		},
	}
	c.Flags().BoolVar(&o.DryRun, "dry-run", false, "say what would be done, and change nothing")
	c.Flags().BoolVar(&stay, "stay", false, "when it is done, wait for SIGTERM: for a DaemonSet that does it on all nodes")
	c.Flags().StringVar(&o.OVSRunDir, "ovs-run-dir", "/run/openvswitch", "where Open vSwitch has its sockets")
	return c
}

func flagsOnly(name string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) > 0 {
			return usageError{fmt.Errorf("%q: %s takes flags only", args[0], name)}
		}
		return nil
	}
}
