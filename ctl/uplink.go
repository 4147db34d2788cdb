package ctl

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/fairlead-cni/fairlead/ctl/nodecmd"
	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/internal/cli"
)

func uplinkCommand(node *localNode) *cobra.Command {
	return parent("uplink", "Shows, checks and restores this node's NIC", `uplink shows and restores the NIC of this node that bridged pods use. It needs root and
does the same as "fairlead-agent uplink". See docs/uplink.md.`,
		uplinkStatusCommand(node), preflightCommand(node), restoreCommand(node))
}

// onNode is a command that examines this node, as root.
func onNode(use, short, long, example string,
	run func(ctx context.Context, c *cobra.Command, out *output) error) *cobra.Command {
	var out output
	c := &cobra.Command{Use: use, Short: short, Long: long, Example: example, Args: cli.FlagsOnly,
		RunE: func(c *cobra.Command, _ []string) error {
			if os.Geteuid() != 0 {
				return errors.New("this needs root: sudo")
			}
			return run(c.Context(), c, &out)
		}}
	out.add(c)
	return c
}

// lines writes a multi-line text as it is.
func lines(text fmt.Stringer) func(*report.Printer) {
	return func(p *report.Printer) {
		if s := text.String(); s != "" {
			p.Line("%s", s[:len(s)-1])
		}
	}
}

func uplinkStatusCommand(node *localNode) *cobra.Command {
	return onNode("status", "Shows whether the NIC is attached, and what is missing",
		`status shows the journal, the state found on the node, and the next step. Exit code 3:
the attached state is incomplete.`, "  sudo fairleadctl uplink status",
		func(ctx context.Context, c *cobra.Command, out *output) error {
			s, err := nodecmd.Status(ctx, node.journal, logr.Discard())
			if err != nil {
				return err
			}
			err = out.write(c.OutOrStdout(), s, lines(s))
			if err == nil && s.Next != "" {
				return cli.ExitCode(exitWarning)
			}
			return err
		})
}

func preflightCommand(node *localNode) *cobra.Command {
	var nic string
	c := onNode("preflight", "Shows what attaching the NIC would do, or why it is not possible",
		`preflight checks whether the NIC can be attached safely, and changes nothing. Exit code 4:
it cannot.`, "  sudo fairleadctl uplink preflight --nic eth0",
		func(ctx context.Context, c *cobra.Command, out *output) error {
			cfg, err := node.load()
			if err != nil {
				return err
			}
			r, err := nodecmd.Preflight(ctx, cfg, node.journal, nic, logr.Discard())
			if err != nil {
				return err
			}
			err = out.write(c.OutOrStdout(), r, lines(r))
			if err == nil && len(r.Refused) > 0 {
				return cli.ExitCode(exitFailing)
			}
			return err
		})
	c.Flags().StringVar(&nic, "nic", "", "the NIC (default: transportInterface of the config file)")
	return c
}

func restoreCommand(node *localNode) *cobra.Command {
	return onNode("restore", "Detaches the NIC and restores its previous state",
		`restore detaches the NIC from Open vSwitch and restores everything that the journal has on
record. It needs no config, no API, no agent and no running Open vSwitch. It may be
repeated. Bridged pods have no network until the agent is restarted.`, "  sudo fairleadctl uplink restore",
		func(ctx context.Context, c *cobra.Command, out *output) error {
			if _, _, err := nodecmd.Restore(ctx, node.journal, klog.Background()); err != nil {
				return err
			}
			s, err := nodecmd.Status(ctx, node.journal, klog.Background())
			if err != nil {
				return err
			}
			return out.write(c.OutOrStdout(), s, lines(s))
		})
}
