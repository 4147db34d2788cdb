package ctl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ctl/agents"
	"github.com/fairlead-cni/fairlead/datapath/uplink"
	"github.com/fairlead-cni/fairlead/datapath/vswitchd"
	"github.com/fairlead-cni/fairlead/diagnose/cluster"
	"github.com/fairlead-cni/fairlead/diagnose/nodestate"
	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/diagnose/versions"
	"github.com/fairlead-cni/fairlead/internal/cli"
)

// wholeStatus is the output of "status": the cluster, this node, or both.
type wholeStatus struct {
	Cluster *cluster.Status `json:"cluster,omitempty"`
	Node    *nodeStatus     `json:"thisNode,omitempty"`
	// NotLookedAt says what was not examined, and why.
	NotLookedAt []string `json:"notLookedAt,omitempty"`
}

// nodeStatus is the state of the components of this node.
type nodeStatus struct {
	Agent      *api.AgentState `json:"agent,omitempty"`
	AgentError string          `json:"agentError,omitempty"`
	// OVS summarises the state of Open vSwitch.
	OVS    string `json:"ovs"`
	Uplink string `json:"uplink"`
}

func statusCommand(conn *connection, node *localNode) *cobra.Command {
	var out output
	c := &cobra.Command{
		Use:   "status",
		Short: "Shows nodes, pools and the leader",
		Long: `status shows the Nodes with their podCIDRs, agents and versions, the IPPools and their usage,
the leader among the fairlead-controllers, and Fairlead's Warning Events of the last hour.
On a node, as root, it also shows the state of the agent and of Open vSwitch.

Where agents probe each other (reachability: probe), REACHES says of how many of the nodes
that a node probes the pods are reached, and of which not. The agents are asked for that, by
commands in their Pods, as "fairleadctl reach" does; above 100 nodes only those that an Event
says are not reached.

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
		s.Node = lookHere(ctx, cfg, node.journal)
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
	answers, unasked, err := conn.asker(client).All(ctx, v)
	s.NotLookedAt = append(s.NotLookedAt, agents.Summarise(s.Cluster, answers, unasked, err)...)
	return s, v.Missing(cluster.Nodes)
}

func lookHere(ctx context.Context, cfg api.AgentConfig, journal string) *nodeStatus {
	s := &nodeStatus{OVS: ovsInWords(ctx, cfg), Uplink: uplinkInWords(ctx, journal)}
	if a, err := nodestate.Agent(ctx, cfg); err != nil {
		s.AgentError = err.Error()
	} else {
		s.Agent = &a
	}
	return s
}

func ovsInWords(ctx context.Context, cfg api.AgentConfig) string {
	db, err := nodestate.OVS(ctx, cfg)
	if err != nil {
		return err.Error()
	}
	defer db.Close()
	o, err := db.Observe(cfg.OVSBridge)
	switch {
	case err != nil:
		return err.Error()
	case !o.BridgePresent:
		return "runs, without the bridge " + cfg.OVSBridge
	}
	sw, err := nodestate.Switch(ctx, cfg)
	if err != nil {
		return "ovsdb-server runs, ovs-vswitchd does not answer: " + err.Error()
	}
	sw.Close()
	version, err := vswitchd.Version(ctx, cfg.OVSRunDir)
	if err != nil {
		version = "unknown"
	}
	return fmt.Sprintf("runs, bridge %s, datapath %s, %d pods; version %s: %s", cfg.OVSBridge, o.DatapathType, o.PodCount(),
		version, versions.Of(versions.OpenVSwitch, version, time.Now()))
}

func uplinkInWords(ctx context.Context, journal string) string {
	u, err := uplink.Open(journal, logr.Discard())
	if err != nil {
		return err.Error()
	}
	s, err := u.Status(ctx)
	if err != nil {
		return err.Error()
	}
	words := strings.TrimSpace(strings.SplitN(s.String(), "\n", 2)[0])
	if s.Journal != "" {
		words += "; " + strings.ReplaceAll(s.Journal, "\n", "; ")
	}
	return words
}

func (s *wholeStatus) write(p *report.Printer) {
	if s.Cluster != nil {
		writeCluster(p, s.Cluster)
	}
	if s.Node != nil {
		writeHere(p, s.Node)
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

func writeHere(p *report.Printer, s *nodeStatus) {
	agent := p.Paint(report.Bad, s.AgentError)
	if a := s.Agent; a != nil {
		agent = p.Paint(report.Good, "ready")
		switch {
		case a.NotReady != "":
			agent = p.Paint(report.Bad, "not ready: ") + a.NotReady
		case a.Degraded != "":
			agent = p.Paint(report.Middle, "degraded: ") + a.Degraded
		}
		p.Line("this node is %s, fairlead-agent %s: %d pods, %d flows, pods' MTU %d", a.Node, a.Version, a.Pods, len(a.Flows), a.PodMTU)
	}
	p.Text("agent         ", agent)
	p.Text("Open vSwitch  ", s.OVS)
	p.Text("uplink        ", s.Uplink)
	if s.Agent != nil && s.Agent.Reach != nil {
		p.Text("reaches       ", agents.InWords(p, *s.Agent.Reach))
	}
}
