package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/fairlead-cni/fairlead/test/lab/lab"
)

func traceCommand(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "trace NAMESPACE/NAME ADDRESS|NAMESPACE/NAME",
		Short: "Explain the path of a pod's packet",
		Long: `Explain what Open vSwitch does with a ping of a pod to an address or to another pod.
Nothing is sent: ovs-vswitchd walks through the flows of the bridge br-int (ofproto/trace).`,
		Example: "  lab trace default/a default/c\n  lab trace default/a 203.0.113.1",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := lab.Open(*dir)
			if err != nil {
				return err
			}
			lines, err := l.Trace(cmd.Context(), args[0], args[1])
			for _, line := range lines {
				fmt.Fprintln(cmd.OutOrStdout(), line)
			}
			return err
		},
	}
}
