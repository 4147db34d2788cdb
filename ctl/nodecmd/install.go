package nodecmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/fairlead-cni/fairlead/agent/uninstall"
	"github.com/fairlead-cni/fairlead/cniserver/conflist"
	"github.com/fairlead-cni/fairlead/internal/cli"
)

// InstallCNI is the command "install-cni".
func InstallCNI() *cobra.Command {
	var chained string
	plugins := conflist.Plugins{Kept: conflist.DefaultKept}
	c := &cobra.Command{
		Use:   "install-cni",
		Short: "Installs the CNI plugins on this node, for an init container",
		Long: `Copies Fairlead's CNI plugin to the directory of the container runtime's plugins, under the
names fairlead and antrea, and the reference plugins portmap and bandwidth where the node has none
or older ones. A file is replaced atomically, even while the runtime executes it, and only if it
differs. A copy of each replaced file is kept in ` + conflist.DefaultKept + `;
"fairlead-agent uninstall" restores it.

In a container both directories must be mounted from the node.`,
		Args: cli.FlagsOnly,
		RunE: func(c *cobra.Command, _ []string) error {
			return installCNI(c.Context(), c.OutOrStdout(), plugins, chained)
		},
	}
	c.Flags().StringVar(&plugins.BinDir, "bin-dir", conflist.DefaultBinDir, "directory in which the runtime looks for plugins")
	c.Flags().StringVar(&chained, "plugins", "/usr/local/lib/cni",
		"directory with portmap and bandwidth; empty: do not install them")
	return c
}

func installCNI(ctx context.Context, out io.Writer, plugins conflist.Plugins, chained string) error {
	from := Shim(klog.Background())
	if from == "" {
		return errors.New("the CNI plugin fairlead is not next to fairlead-agent: the installation is incomplete")
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
		fmt.Fprintf(out, "all plugins in %s are up to date\n", plugins.BinDir)
	}
	return err
}

// Uninstall is the command "uninstall".
func Uninstall() *cobra.Command {
	o := uninstall.Options{Log: klog.Background()}
	stay := false
	c := &cobra.Command{
		Use:   "uninstall",
		Short: "Removes Fairlead from this node and restores what it changed",
		Long: `Removes everything that agents have created on this node: the CNI network configuration and
plugins, the attachment of the NIC, bridges, routes, iptables chains, pod interfaces, and all files.
The NIC, its addresses and routes, and replaced plugins are restored. IP forwarding stays enabled.

Stop the agent permanently first: delete its DaemonSet. Pods of this node lose their network; delete
them when another network is installed. Keep Open vSwitch running until this is done; if it does not
run, its database is edited offline.

It may be interrupted and repeated at any time, and needs no config and no Kubernetes API.
Exit codes: 0 nothing is left, 1 something is left, which is printed, 2 invalid flags.`,
		Args: cli.FlagsOnly,
		RunE: func(c *cobra.Command, _ []string) error {
			if os.Geteuid() != 0 {
				return errors.New("this needs root")
			}
			o.Out = c.OutOrStdout()
			if err := uninstall.Run(c.Context(), o); err != nil || !stay {
				return err
			}
			fmt.Fprintln(o.Out, "waiting for SIGTERM (--stay)")
			<-c.Context().Done()
			return nil
		},
	}
	c.Flags().BoolVar(&o.DryRun, "dry-run", false, "print what would be done, and change nothing")
	c.Flags().BoolVar(&stay, "stay", false, "when done, wait for SIGTERM: for a DaemonSet that runs this on all nodes")
	c.Flags().StringVar(&o.OVSRunDir, "ovs-run-dir", "/run/openvswitch", "directory of Open vSwitch's sockets")
	return c
}

// Shim is the CNI plugin beside the agent's own binary; empty if there is none.
func Shim(log logr.Logger) string {
	self, err := os.Executable()
	if err != nil {
		log.Error(err, "looking for the CNI plugin to install")
		return ""
	}
	path := filepath.Join(filepath.Dir(self), "fairlead")
	if _, err := os.Stat(path); err != nil {
		log.Info("no CNI plugin next to the agent, not installing one", "path", path)
		return ""
	}
	return path
}
