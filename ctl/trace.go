package ctl

import (
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/fairlead-cni/fairlead/ctl/trace"
	"github.com/fairlead-cni/fairlead/internal/cli"
)

func traceCommand(conn *connection, node *localNode) *cobra.Command {
	var out output
	c := &cobra.Command{
		Use:   "trace [NAMESPACE/]POD ADDRESS|[NAMESPACE/]POD|[NAMESPACE/]SERVICE:PORT[/UDP]",
		Short: "Explains the path of a pod's packet through this node",
		Long: `trace explains what Open vSwitch on this node does with a ping from a pod to an address
or to another pod. Nothing is sent: ovs-vswitchd simulates the packet (ofproto/trace).
It needs root.

With a port, by its number or by its name in the Service, it is the first packet of a
connection: trace shows which endpoints the Service has on this node, which of them was chosen,
or why there is none. A ClusterIP in place of the Service needs no Kubernetes API.

The path has a part on the sender's node and one on the receiver's: run the same command
on both. The Kubernetes API is only needed for pods of other nodes.`,
		Example: `  sudo fairleadctl trace default/a default/c
  sudo fairleadctl trace web-0 203.0.113.1
  sudo fairleadctl trace web-0 shop/db:5432
  sudo fairleadctl trace web-0 10.96.0.10:53/UDP`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 2 {
				return cli.Usage(errors.New("want a pod, and an address, another pod or a port of a Service: trace default/a 10.77.2.2"))
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
			ctx, cancel := conn.within(c)
			defer cancel()
			t := trace.Tracer{Client: conn.client, Config: cfg}
			way, err := t.Run(ctx, args[0], args[1])
			if err != nil {
				return err
			}
			return out.write(c.OutOrStdout(), way, way.Write)
		},
	}
	out.add(c)
	return c
}
