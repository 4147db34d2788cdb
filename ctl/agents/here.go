package agents

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/diagnose/nodestate"
	"github.com/fairlead-cni/fairlead/diagnose/reach"
	"github.com/fairlead-cni/fairlead/diagnose/report"
)

// probingPoll is how often the agent is polled for results.
const probingPoll = 500 * time.Millisecond

// Here queries this node's agent about all nodes or about one, which the agent probes on request until ctx nearly ends.
func Here(ctx context.Context, cfg api.AgentConfig, peer string) (a Answer) {
	for requested := false; ; {
		s, err := nodestate.Agent(ctx, cfg)
		if err != nil {
			return Answer{Error: err.Error()}
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

// undecided reports whether more about a path will be known soon. If the other end reports a failure, what is known may
// be enough.
func undecided(p api.ReachPath) bool {
	return p.State == "unknown" && (p.FromThere != string(reach.Fails) || p.Echo == "")
}

// Write writes the answer of this node's agent as text.
func (a Answer) Write(p *report.Printer) {
	switch {
	case a.Error != "":
		return
	case a.Reach == nil:
		p.Line("the agent of this node, %s, does not probe other nodes (reachability: probe, docs/reachability.md)", a.Node)
		return
	}
	p.Text("pods of this node, "+a.Node+", reach ", ReachSummary(p, *a.Reach))
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

// ReachSummary says how many nodes have pods that are reached.
func ReachSummary(p *report.Printer, r api.AgentReach) string {
	if r.Problem != "" {
		return p.Paint(report.Middle, "not probed: ") + r.Problem
	}
	text := fmt.Sprintf("pods of %d of %d probed nodes", r.Reached, r.Asked)
	if r.Away > 0 {
		text += fmt.Sprintf("; %d away", r.Away)
	}
	if r.Unknown > 0 {
		text += fmt.Sprintf("; %d not known yet", r.Unknown)
	}
	var nodes []string
	for _, f := range r.Findings {
		if !slices.Contains(nodes, f.Node) {
			nodes = append(nodes, f.Node)
		}
	}
	if len(nodes) > 0 {
		text += "; " + p.Paint(report.Bad, "not "+report.Some(nodes)) + " (fairleadctl doctor reach says why)"
	}
	return text
}
