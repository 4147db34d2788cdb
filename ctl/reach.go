package ctl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ctl/agents"
	"github.com/fairlead-cni/fairlead/diagnose/checks"
	"github.com/fairlead-cni/fairlead/diagnose/cluster"
	"github.com/fairlead-cni/fairlead/diagnose/nodestate"
	"github.com/fairlead-cni/fairlead/diagnose/reach"
	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/internal/cli"
	"github.com/fairlead-cni/fairlead/kube"
)

// probingPoll is how often the agent is asked what it knows by now.
const probingPoll = 500 * time.Millisecond

func reachCommand(conn *connection, node *localNode) *cobra.Command {
	var out output
	c := &cobra.Command{
		Use:   "reach NODE NODE | reach --node-local [NODE]",
		Short: "Says whether pods of two nodes reach each other, in which direction, and why not",
		Long: `reach asks the agents of two nodes what they know of the way between their pods, joins what
both know, and says for each direction and family whether packets pass, since when they do
not, which node or what between drops them, and what to do. Agents probe each other with
reachability: probe in their config (docs/reachability.md). In clusters of more than ten nodes
most pairs are not probed all the time: both agents are asked to probe each other now, which
takes up to 25 s.

Agents answer on their own node only: the command is run in their Pods, as kubectl exec does
it, so your kubeconfig needs that right in kube-system (get and create on pods/exec). On a node,
as root, that node's agent is asked directly.

--node-local shows what the agent of this node knows, of all nodes or of one, and needs root.

The exit code is 0 if packets pass both ways, 4 if they do not or not all, 3 if they pass
and an agent does not run, 1 if it is not known.`,
		Example: `  fairleadctl reach node1 node2
  fairleadctl reach node1 node2 -o json | jq '.ways[] | {from, to, family, state}'
  sudo fairleadctl reach --node-local`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case node.only && len(args) > 1:
				return cli.Usage(errors.New("--node-local is about this node: want one other node, or none"))
			case !node.only && len(args) != 2:
				return cli.Usage(errors.New("want two nodes: reach node1 node2"))
			case !node.only && args[0] == args[1]:
				return cli.Usage(fmt.Errorf("%s is named twice: want two nodes. Pods of one node do not leave it", args[0]))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			ctx, cancel := conn.within(c)
			defer cancel()
			if node.only {
				return reachHere(ctx, c, node, args, out)
			}
			p, err := conn.reachPair(ctx, args[0], args[1])
			if err != nil {
				return err
			}
			if err := out.write(c.OutOrStdout(), p, p.write); err != nil {
				return err
			}
			return p.exit()
		},
	}
	out.add(c)
	node.addOnly(c)
	return c
}

// reachHere shows what the agent of this node knows.
func reachHere(ctx context.Context, c *cobra.Command, node *localNode, args []string, out output) error {
	if os.Geteuid() != 0 {
		return errors.New("--node-local needs root: sudo")
	}
	cfg, err := node.load()
	if err != nil {
		return err
	}
	peer := ""
	if len(args) > 0 {
		peer = args[0]
	}
	a := askHere(ctx, cfg, peer)
	if err := out.write(c.OutOrStdout(), a, func(p *report.Printer) { writeReachHere(p, a) }); err != nil {
		return err
	}
	if a.Error != "" {
		return errors.New(a.Error)
	}
	if a.Refused != "" {
		return errors.New(a.Refused)
	}
	return nil
}

// askHere asks the agent of this node, about all nodes or about one, which it probes by request until ctx nearly ends.
func askHere(ctx context.Context, cfg api.AgentConfig, peer string) (a agents.Answer) {
	for requested := false; ; {
		s, err := nodestate.Agent(ctx, cfg)
		if err != nil {
			return agents.Answer{Error: err.Error()}
		}
		a.Node, a.Reach = s.Node, s.Reach
		if peer == "" || s.Reach == nil || s.Reach.Problem != "" {
			return a
		}
		s.Reach.Paths = slices.DeleteFunc(s.Reach.Paths, func(p api.ReachPath) bool { return p.Node != peer })
		s.Reach.Findings = slices.DeleteFunc(s.Reach.Findings, func(f api.ReachFinding) bool { return f.Node != peer })
		if len(s.Reach.Paths) > 0 && !slices.ContainsFunc(s.Reach.Paths, undecided) {
			return a
		}
		if len(s.Reach.Paths) == 0 && !requested {
			if err := nodestate.Probe(ctx, cfg, peer); err != nil {
				a.Refused = err.Error()
				return a
			}
			requested = true
		}
		if end, bounded := ctx.Deadline(); bounded && time.Until(end) < 2*probingPoll {
			return a
		}
		select {
		case <-ctx.Done():
			return a
		case <-time.After(probingPoll):
		}
	}
}

// undecided reports whether more will be known of a path soon: with the other end's word, what is known may be enough.
func undecided(p api.ReachPath) bool {
	return p.State == "unknown" && (p.FromThere != string(reach.Fails) || p.Echo == "")
}

func writeReachHere(p *report.Printer, a agents.Answer) {
	switch {
	case a.Error != "":
		return
	case a.Reach == nil:
		p.Line("the agent of this node, %s, does not probe other nodes (reachability: probe, docs/reachability.md)", a.Node)
		return
	}
	p.Text("pods of this node, "+a.Node+", reach ", reachInWords(p, *a.Reach))
	rows := [][]string{{"NODE", "FAMILY", "FROM THERE", "TO THERE", "STATE", "SINCE"}}
	for _, q := range a.Reach.Paths {
		rows = append(rows, []string{q.Node, q.Family, q.FromThere, q.ToThere, q.State, clock(q.Since)})
	}
	if len(rows) > 1 {
		p.Table(rows...)
	}
}

func clock(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.DateTime) + " UTC"
}

// reachedPair is the output of "reach".
type reachedPair struct {
	Ways     []reach.Way      `json:"ways"`
	Findings []report.Finding `json:"findings"`
}

// reachPair asks both nodes' agents.
func (f *connection) reachPair(ctx context.Context, a, b string) (p reachedPair, err error) {
	client, err := f.client()
	if err != nil {
		return p, err
	}
	v := cluster.Read(ctx, client, cluster.Nodes)
	if err := v.Missing(cluster.Nodes); err != nil {
		return p, err
	}
	for _, name := range []string{a, b} {
		if !slices.ContainsFunc(v.Nodes, func(n cluster.Node) bool { return n.Name == name }) {
			return p, fmt.Errorf("there is no Node %s: kubectl get nodes lists them", name)
		}
	}
	answers, err := f.ask(ctx, client, f.timeout, []string{a, b}, func(node string) string {
		return map[string]string{a: b, b: a}[node]
	})
	if err != nil {
		return p, err
	}
	p.Ways = reach.Join(answers[0].Side(b), answers[1].Side(a))
	p.Findings = checks.Ways(p.Ways)
	return p, nil
}

// ask asks the agents of nodes, each about its peer, or about all nodes where that is empty: as root on one of them
// that one's directly, the others by a command in their Pods. Each has limit. The answers are in the order of nodes.
func (f *connection) ask(ctx context.Context, client *kube.Client, limit time.Duration, nodes []string,
	peer func(node string) string) ([]agents.Answer, error) {
	own, here := "", api.AgentConfig{}
	if cfg, notHere, err := f.node.here(); err == nil && notHere == "" && os.Geteuid() == 0 {
		if s, err := nodestate.Agent(ctx, cfg); err == nil {
			own, here = s.Node, cfg
		}
	}
	known := map[string]agents.Answer{}
	var asking sync.WaitGroup
	if slices.Contains(nodes, own) {
		asking.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			known[own] = askHere(ctx, here, peer(own))
		})
	}
	others := slices.DeleteFunc(slices.Clone(nodes), func(n string) bool { return n == own })
	answers, err := agents.Ask(ctx, client, limit, others, peer)
	asking.Wait()
	if err != nil {
		return nil, cluster.Explain("the Pods of agents", err)
	}
	out := make([]agents.Answer, 0, len(nodes))
	for _, n := range nodes {
		if n == own {
			out = append(out, known[own])
			continue
		}
		out, answers = append(out, answers[0]), answers[1:]
	}
	return out, nil
}

func (p reachedPair) write(out *report.Printer) {
	rows := [][]string{{"FROM PODS ON", "TO PODS ON", "FAMILY", "PACKETS", "SINCE"}}
	for _, w := range p.Ways {
		rows = append(rows, []string{w.From, w.To, w.Family, wayInWords(out, w), clock(w.Since)})
	}
	out.Table(rows...)
	out.Line("")
	for i, f := range p.Findings {
		f.Write(out, i+1, f.Check+": ")
	}
}

func wayInWords(p *report.Printer, w reach.Way) string {
	switch w.Is {
	case reach.Works:
		return p.Paint(report.Good, "pass")
	case reach.Fails:
		return p.Paint(report.Bad, "do not pass")
	case reach.Narrow:
		return p.Paint(report.Bad, "pass if small")
	case reach.Lossy:
		return p.Paint(report.Bad, "are lost in part")
	}
	return p.Paint(report.Middle, "not known")
}

// exit is the exit code. What is not known is no finding: the question has no answer.
func (p reachedPair) exit() error {
	unknown := slices.IndexFunc(p.Ways, func(w reach.Way) bool { return w.Is == reach.Unknown })
	switch {
	case slices.ContainsFunc(p.Ways, reach.Way.Bad):
		return cli.ExitCode(exitFailing)
	case unknown >= 0:
		return errors.New("whether pods of both nodes reach each other: " + p.Ways[unknown].Text)
	case len(p.Findings) > 0:
		return cli.ExitCode(exitWarning)
	}
	return nil
}
