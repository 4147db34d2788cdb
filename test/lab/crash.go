package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
)

func crashCommand(dir *string) *cobra.Command {
	var at string
	limit := time.Minute
	cmd := &cobra.Command{
		Use:   "crash NODE --at STEP",
		Short: "Kill a node's agent in the middle of attaching its uplink, or of restoring it",
		Long: `Kill a node's agent (SIGKILL) as soon as the journal of its uplink says that STEP has begun. An agent
that runs is ended first and the uplink restored, so that there is something to attach. For a step
of a restore an agent attaches first, and "fairlead-agent uplink restore" is killed. What is left
is left for inspection; "lab agent NODE start" continues.

Steps of an attach: ` + strings.Join(lab.CrashSteps(api.UplinkBridge, false), ", ") + `.
Steps back: ` + strings.Join(lab.CrashSteps(api.UplinkBridge, true), ", ") + `.
With --uplink steer: ` + strings.Join(lab.CrashSteps(api.UplinkSteer, false), ", ") + `; and ` +
			strings.Join(lab.CrashSteps(api.UplinkSteer, true), ", ") + `.

A step in which there is nothing to do does not come. The journal is /var/lib/fairlead/uplink.json.`,
		Example: "  lab crash node1 --at port\n  lab crash node1 --at 'undo routes'\n" +
			"  lab node node1 -- cat /var/lib/fairlead/uplink.json",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := lab.Open(*dir)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), limit)
			defer cancel()
			past, err := l.AgentCrash(ctx, args[0], at)
			if err == nil && past != "" {
				err = fmt.Errorf("step %q had nothing to do, or finished too fast: killed at %q. If the step exists, try again",
					at, past)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&at, "at", "", "the step (see above)")
	cmd.Flags().DurationVar(&limit, "timeout", limit, "timeout of the whole command")
	if err := cmd.MarkFlagRequired("at"); err != nil {
		panic(err) // the flag is defined above
	}
	return cmd
}

func rebootCommand(dir *string) *cobra.Command {
	var noAgent bool
	wait := 30 * time.Second
	cmd := &cobra.Command{
		Use:   "reboot NODE",
		Short: "Simulate a power failure of a node, and boot it again",
		Long: `Simulate a power failure of a node, and boot it again: its processes are killed, its namespaces recreated, with
another boot ID. Interfaces, addresses, routes, pods and all in /run are gone; what is on disk stays,
the database of Open vSwitch among it. Open vSwitch starts first. Then eth0 gets its addresses, as by
a distribution's configuration, and the agent starts. The pod runner recreates the pods.`,
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
	cmd.Flags().DurationVar(&wait, "wait", wait, "timeout for the agent to be ready; 0: do not wait")
	return cmd
}
