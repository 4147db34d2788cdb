package ctl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead-cni/fairlead/ctl/agents"
	"github.com/fairlead-cni/fairlead/diagnose/cluster"
	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/internal/cli"
)

// wholeStatus is the output of "status": the cluster, this node, or both.
type wholeStatus struct {
	Cluster *cluster.Status `json:"cluster,omitempty"`
	Node    *agents.State   `json:"thisNode,omitempty"`
	// NotLookedAt says what was not examined, and why.
	NotLookedAt []string `json:"notLookedAt,omitempty"`
}

func statusCommand(conn *connection, node *localNode) *cobra.Command {
	var out output
	c := &cobra.Command{
		Use:   "status",
		Short: "Shows nodes, pools and the leader",
		Long: `status shows the Nodes with their podCIDRs, agents and versions, the IPPools and their usage,
the leader among the fairlead-controllers, and Fairlead's Warning Events of the last hour.
On a node, as root, it also shows the state of the agent and of Open vSwitch.

Where agents probe each other (reachability: probe), REACHES shows how many of the nodes that
a node probes have pods that are reached, and which do not. The agents are queried for that, by
commands in their Pods, as "fairleadctl reach" does; above 100 nodes, only those on nodes that
an Event reports as not reached.

It does not judge; doctor does. The exit code is 0, or 1 if the Nodes could not be read
or, with --node-local, the agent does not answer.`,
		Example: `  fairleadctl status
  sudo fairleadctl status --node-local
  fairleadctl status -o yaml`,
		Args: cli.FlagsOnly,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, cancel := conn.within(c)
			defer cancel()
			s, failed := gather(ctx, conn, node)
			if s == nil {
				return failed
			}
			return errors.Join(out.write(c.OutOrStdout(), s, s.write), failed)
		},
	}
	out.add(c)
	node.addOnly(c)
	return c
}

// gather reads the state of cluster and node; nil if there is nothing to show.
func gather(ctx context.Context, conn *connection, node *localNode) (*wholeStatus, error) {
	cfg, notHere, err := node.here()
	if err != nil {
		return nil, err
	}
	s := &wholeStatus{}
	switch {
	case notHere != "":
		s.NotLookedAt = append(s.NotLookedAt, "a node's agent, Open vSwitch and uplink: "+notHere)
	case os.Geteuid() != 0:
		s.NotLookedAt = append(s.NotLookedAt, "this node's agent, Open vSwitch and uplink: needs root")
	default:
		s.Node = agents.ReadState(ctx, cfg, node.journal)
	}
	if node.only {
		s.NotLookedAt = append(s.NotLookedAt, "the cluster: --node-local")
		switch {
		case s.Node == nil:
			return nil, errors.New("--node-local needs root: sudo")
		case s.Node.AgentError != "":
			return s, errors.New(s.Node.AgentError)
		}
		return s, nil
	}
	client, err := conn.client()
	if err != nil && s.Node == nil {
		return nil, err
	} else if err != nil {
		s.NotLookedAt = append(s.NotLookedAt, "the cluster: "+err.Error())
		return s, nil
	}
	v := cluster.Read(ctx, client, cluster.StatusParts()...)
	if err := v.Missing(cluster.Nodes); err != nil && s.Node == nil {
		return nil, err
	}
	status := v.Status()
	s.Cluster = &status
	answers, unasked, err := conn.querier(client).All(ctx, v)
	s.NotLookedAt = append(s.NotLookedAt, agents.Summarise(s.Cluster, answers, unasked, err)...)
	return s, v.Missing(cluster.Nodes)
}

func (s *wholeStatus) write(p *report.Printer) {
	if s.Cluster != nil {
		writeCluster(p, s.Cluster)
	}
	if s.Node != nil {
		s.Node.Write(p)
	}
	for _, n := range s.NotLookedAt {
		p.Text("not examined: ", n)
	}
}

func writeCluster(p *report.Printer, s *cluster.Status) {
	c := p.Paint(report.Middle, s.Controller.String())
	if s.Controller.Works {
		c = s.Controller.String()
	}
	p.Line("fairlead-controller  %s", c)
	p.Line("")
	rows := [][]string{{"NODE", "READY", "PODCIDR", "ADDRESS", "AGENT", "REACHES", "POOL ADDRESSES"}}
	for _, n := range s.Nodes {
		rows = append(rows, []string{n.Name, agents.NodeReady(p, n.Ready), strings.Join(n.PodCIDRs, ","),
			strings.Join(n.Addresses, ","), agents.Ready(p, n.Agent), agents.Cell(p, n.Reach), fmt.Sprint(n.Held)})
	}
	p.Table(rows...)
	p.Line("")
	if len(s.Versions) > 0 {
		rows := [][]string{{"SOFTWARE", "VERSION", "NODES", "SUPPORT"}}
		for _, v := range s.Versions {
			rows = append(rows, []string{string(v.Software), v.Version, fmt.Sprint(len(v.Nodes)), v.Support})
		}
		p.Table(rows...)
		p.Line("")
	}
	if len(s.Ranges) > 0 {
		rows := [][]string{{"CLUSTER CIDR", "NODE MASK", "USED", "TOTAL", "STATE"}}
		for _, r := range s.Ranges {
			rows = append(rows, []string{r.ClusterCIDR, fmt.Sprintf("/%d", r.NodeMask), fmt.Sprint(r.Used),
				fmt.Sprint(r.Total), state(p, r.State)})
		}
		p.Table(rows...)
		p.Line("")
	}
	if len(s.Pools) > 0 {
		writePools(p, s.Pools)
		p.Line("")
	}
	for i, w := range s.Warnings {
		if i == 5 {
			p.Line("and %d more warnings (-o json has all)", len(s.Warnings)-i)
			break
		}
		p.Text(p.Paint(report.Middle, "warned ")+w.Last.UTC().Format(time.TimeOnly)+" UTC: ", w.About+": "+w.Reason+": "+w.Message)
	}
	for _, n := range s.NotKnown {
		p.Text("unknown: ", n)
	}
}

func state(p *report.Printer, s string) string {
	if s == "Ready" {
		return p.Paint(report.Good, s)
	}
	return p.Paint(report.Bad, s)
}
