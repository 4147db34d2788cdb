package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead-cni/fairlead/test/lab/lab"
)

func rebootCommand(dir *string) *cobra.Command {
	var noAgent bool
	wait := 30 * time.Second
	cmd := &cobra.Command{
		Use:   "reboot NODE",
		Short: "Let a node's power fail, and boot it again",
		Long: `Let a node's power fail, and boot it again: its processes are killed, its namespaces made anew, with
another boot ID. Interfaces, addresses, routes, pods and all in /run are gone; what is on disk stays,
the database of Open vSwitch among it. Open vSwitch starts first. Then eth0 gets its addresses, as by
a distribution's configuration, and the agent starts. The pod runner makes the pods anew.`,
		Example: "  lab reboot node1\n  lab reboot node1 --no-agent",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := lab.Open(*dir)
			if err != nil {
				return err
			}
			if err := l.Reboot(cmd.Context(), args[0]); err != nil || noAgent {
				return err
			}
			return startAgent(cmd.Context(), l, args[0], wait)
		},
	}
	cmd.Flags().BoolVar(&noAgent, "no-agent", false, "do not start the agent")
	cmd.Flags().DurationVar(&wait, "wait", wait, "how long the agent may take to get ready, 0 to not wait")
	return cmd
}
