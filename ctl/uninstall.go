package ctl

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/internal/cli"
	"github.com/fairlead-cni/fairlead/migrate/takedown"
)

// uninstall are the flags of "uninstall".
type uninstall struct {
	conn    *connection
	out     output
	release string
	wait    time.Duration
	yes     bool
}

func uninstallCommand(conn *connection) *cobra.Command {
	u := &uninstall{conn: conn}
	c := &cobra.Command{
		Use:   "uninstall",
		Short: "Restores all nodes, before Fairlead is deleted from the cluster",
		Long: `uninstall removes Fairlead from the nodes of a cluster: it deletes the DaemonSet of the
agents, runs "fairlead-agent uninstall" on each node, and waits until all are done. NIC,
routes, iptables and CNI files of each node are then as they were before Fairlead.

Running pods lose their network; delete them when another network is installed. Then
delete the remaining objects: kubectl delete -f fairlead.yaml, see docs/install.md.
"helm uninstall" does both.

It may be interrupted and run again at any time. Nodes that do not answer are listed.`,
		Example: `  fairleadctl uninstall
  fairleadctl uninstall --yes --wait 10m`,
		Args: cli.FlagsOnly,
		RunE: func(c *cobra.Command, _ []string) error { return u.run(c) },
	}
	u.out.add(c)
	c.Flags().BoolVar(&u.yes, "yes", false, "do not ask for confirmation")
	c.Flags().DurationVar(&u.wait, "wait", 5*time.Minute, "timeout for the nodes")
	c.Flags().StringVar(&u.release, "helm-release", "", "only if this Helm release installed the agents: for its hook")
	return c
}

func (u *uninstall) run(c *cobra.Command) error {
	client, err := u.conn.client()
	if err != nil {
		return err
	}
	if !u.yes {
		err := confirm(c, "use --yes to restore all nodes", "The pods of all nodes lose their network. Continue?", "nothing was done")
		if err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(c.Context(), u.wait)
	defer cancel()
	nodes, err := takedown.Run(ctx, takedown.Options{Client: client.Kubernetes, Release: u.release,
		Tell: func(format string, args ...any) { fmt.Fprintf(c.ErrOrStderr(), format+"\n", args...) }})
	if unfinished := (*takedown.Unfinished)(nil); errors.As(err, &unfinished) {
		return fmt.Errorf("%w. Run the command again: it resumes from here. If a node does not come back: kubectl delete node", err)
	}
	if err != nil {
		return err
	}
	return u.out.write(c.OutOrStdout(), nodes, func(p *report.Printer) {
		p.Line("%d nodes are restored. Now delete the remaining objects, but not the CRDs, because that would delete all pools and addresses: docs/install.md#uninstall", len(nodes))
	})
}
