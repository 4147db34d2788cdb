package ctl

import (
	"context"
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/fairlead-cni/fairlead/ctl/inforce"
	"github.com/fairlead-cni/fairlead/internal/cli"
	"github.com/fairlead-cni/fairlead/kube"
)

func serviceCommand(conn *connection, node *localNode) *cobra.Command {
	var out output
	c := &cobra.Command{
		Use:   "service [NAMESPACE/]SERVICE",
		Short: "Shows where this node sends connections to a Service",
		Long: `service shows for each ClusterIP and port of a Service which endpoints it has, which of them
are in force in this node's Open vSwitch, and why the others are not: not ready, meant for other
nodes, or missing there. It reads the Kubernetes API and the flows, and needs root.

Open vSwitch translates ClusterIPs with services: ovs. With services: host, kube-proxy does, and
only what the Kubernetes API has is shown.`,
		Example: `  sudo fairleadctl service shop/db
  sudo fairleadctl service kubernetes -o json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return cli.Usage(errors.New("want a Service: service shop/db"))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if os.Geteuid() != 0 {
				return errors.New("this needs root: sudo")
			}
			cfg, err := node.load()
			if err != nil {
				return err
			}
			return conn.run(c, func(ctx context.Context, client *kube.Client) error {
				v, err := inforce.Read(ctx, client, cfg, inforce.Name(args[0]))
				if err != nil {
					return err
				}
				return out.write(c.OutOrStdout(), v, v.Write)
			})
		},
	}
	out.add(c)
	return c
}
