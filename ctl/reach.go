package ctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fairlead-cni/fairlead/ctl/agents"
	"github.com/fairlead-cni/fairlead/diagnose/reach"
	"github.com/fairlead-cni/fairlead/internal/cli"
	"github.com/fairlead-cni/fairlead/kube"
)

func reachCommand(conn *connection, node *localNode) *cobra.Command {
	var out output
	c := &cobra.Command{
		Use:   "reach NODE NODE | reach --node-local [NODE]",
		Short: "Shows whether pods of two nodes reach each other, in which direction, and why not",
		Long: `reach queries the agents of two nodes about the path between their pods, combines both
answers, and reports for each direction and family whether packets pass, since when they do
not, what drops them (a node, or something between the two), and what to do. Agents probe each
other with reachability: probe in their config (docs/reachability.md). In clusters of more than
ten nodes most pairs are not probed all the time: both agents are then requested to probe each
other now, which takes up to 25 s.

Agents answer on their own node only: the command is run in their Pods, as kubectl exec does,
so your kubeconfig needs the rights for that in kube-system (get and create on pods/exec). On a
node, as root, that node's agent is queried directly.

--node-local shows what this node's agent reports, about all nodes or about one, and needs root.

The exit code is 0 if packets pass both ways, 4 if some or all do not, 3 if they pass but an
agent does not run, 1 if this is unknown.`,
		Example: `  fairleadctl reach node1 node2
  fairleadctl reach node1 node2 -o json | jq '.directions[] | {from, to, family, state}'
  sudo fairleadctl reach --node-local`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case node.only && len(args) > 1:
				return cli.Usage(errors.New("--node-local examines this node: want one other node, or none"))
			case !node.only && len(args) != 2:
				return cli.Usage(errors.New("want two nodes: reach node1 node2"))
			case !node.only && args[0] == args[1]:
				return cli.Usage(fmt.Errorf("%s is named twice: want two nodes. Packets between pods of one node do not leave it", args[0]))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			ctx, cancel := conn.within(c)
			defer cancel()
			if node.only {
				return reachHere(ctx, c, node, args, out)
			}
			client, err := conn.client()
			if err != nil {
				return err
			}
			p, err := conn.querier(client).Pair(ctx, conn.timeout, args[0], args[1])
			if err != nil {
				return err
			}
			return cmp.Or(out.write(c.OutOrStdout(), p, p.Write), exitOfPair(p))
		},
	}
	out.add(c)
	node.addOnly(c)
	return c
}

// querier queries agents: on a node, as root, that node's agent directly.
func (f *connection) querier(client *kube.Client) agents.Querier {
	k := agents.Querier{Client: client}
	if cfg, notHere, err := f.node.here(); err == nil && notHere == "" && os.Geteuid() == 0 {
		k.Node = &cfg
	}
	return k
}

// reachHere shows what this node's agent reports.
func reachHere(ctx context.Context, c *cobra.Command, node *localNode, args []string, out output) error {
	if os.Geteuid() != 0 {
		return errors.New("--node-local needs root: sudo")
	}
	cfg, err := node.load()
	if err != nil {
		return err
	}
	a := agents.Here(ctx, cfg, strings.Join(args, "")) // one, or none
	return cmp.Or(out.write(c.OutOrStdout(), a, a.Write), a.Failure())
}

// exitOfPair is the exit code. A path whose state is unknown is not a finding: the question has no answer.
func exitOfPair(p agents.Pair) error {
	unknown := slices.IndexFunc(p.Directions, func(w reach.Direction) bool { return w.Is == reach.Unknown })
	switch {
	case slices.ContainsFunc(p.Directions, reach.Direction.Bad):
		return cli.ExitCode(exitFailing)
	case unknown >= 0:
		return errors.New("whether pods of both nodes reach each other: " + p.Directions[unknown].Text)
	case len(p.Findings) > 0:
		return cli.ExitCode(exitWarning)
	}
	return nil
}
