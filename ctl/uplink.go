package ctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/fairlead-cni/fairlead/ctl/nics"
	"github.com/fairlead-cni/fairlead/ctl/nodecmd"
	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/internal/cli"
	"github.com/fairlead-cni/fairlead/kube"
)

func uplinkCommand(conn *connection, node *localNode) *cobra.Command {
	return parent("uplink", "Shows, checks and restores this node's NIC", `uplink shows and restores the NIC of this node that bridged pods use. It needs root and
does the same as "fairlead-agent uplink"; "preflight --all-nodes" covers all nodes. See
docs/uplink.md.`,
		uplinkStatusCommand(node), preflightCommand(conn, node), restoreCommand(node))
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

func preflightCommand(conn *connection, node *localNode) *cobra.Command {
	var nic string
	var everywhere bool
	c := onNode("preflight", "Shows what attaching the NIC would do, or why it is not possible",
		`preflight checks whether the NIC can be attached safely, and changes nothing. The NIC is that
of --nic, else the one that transportInterface in the config file names, else the one that is
attached, else the one that the agent, which must be running, has found: by a pattern in
transportInterface, by transportInterfaceCIDRs or by the Node's address.

With --all-nodes it runs from anywhere and without root, and checks the NIC of every node by
running this command in the agents' Pods, as kubectl exec does. Your kubeconfig needs the rights
for that in kube-system (get and create on pods/exec). Nodes on which no agent may run are left out.

Exit code 4: the NIC cannot be attached, or not on all nodes. 3: something is unknown, and what
is known is fine. 1: with --all-nodes, no agent has answered.`, `  sudo fairleadctl uplink preflight --nic eth0
  fairleadctl uplink preflight --all-nodes
  fairleadctl uplink preflight --all-nodes --nic 'en*'`,
		func(ctx context.Context, c *cobra.Command, out *output) error {
			cfg, err := node.load()
			if err != nil {
				return err
			}
			r, err := nodecmd.Preflight(ctx, cfg, node.journal, nic, logr.Discard())
			if err != nil {
				return err
			}
			return cmp.Or(out.write(c.OutOrStdout(), r, lines(r)), exitOfSeverity(nics.Of(r).Severity()))
		})
	here := c.RunE
	c.RunE = func(c *cobra.Command, args []string) error {
		if !everywhere {
			return here(c, args)
		}
		if err := nodecmd.CheckPattern(nic); err != nil {
			return err
		}
		return conn.run(c, func(ctx context.Context, client *kube.Client) error {
			all, err := nics.Query(ctx, client, nic)
			if err != nil {
				return err
			}
			out := output(c.Flag("output").Value.String())
			return cmp.Or(out.write(c.OutOrStdout(), all, all.Write), all.Unanswered(), exitOfSeverity(all.Severity()))
		})
	}
	c.Flags().StringVar(&nic, "nic", "", "the NIC, or a pattern that matches no other interface: 'en*', 'eth[01]'")
	c.Flags().BoolVar(&everywhere, "all-nodes", false, "check every node, from anywhere")
	return c
}

// exitOfSeverity is the exit code for findings whose worst has that severity.
func exitOfSeverity(worst report.Severity) error {
	switch worst {
	case report.Failing:
		return cli.ExitCode(exitFailing)
	case report.Warning:
		return cli.ExitCode(exitWarning)
	}
	return nil
}

func restoreCommand(node *localNode) *cobra.Command {
	return onNode("restore", "Detaches the NIC and restores its previous state",
		`restore detaches the NIC from Open vSwitch and restores everything that the journal has
recorded. It needs no config, no API, no agent and no running Open vSwitch. It may be
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
