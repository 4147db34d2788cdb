package agents

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/diagnose/checks"
	"github.com/fairlead-cni/fairlead/diagnose/cluster"
	"github.com/fairlead-cni/fairlead/diagnose/reach"
	"github.com/fairlead-cni/fairlead/diagnose/report"
)

// Summarise adds to the status which other nodes' pods each node reaches, from what All has returned. It returns what
// is unknown, in sentences.
func Summarise(s *cluster.Status, answers []Answer, notQueried string, err error) (notKnown []string) {
	switch {
	case errors.Is(err, checks.ErrNotProbed):
		return nil
	case err != nil:
		notQueried = err.Error()
	}
	if notQueried != "" {
		notKnown = append(notKnown, "which nodes' pods are reached: "+notQueried)
	}
	var sides []reach.Side
	for _, a := range answers {
		side := a.Side("")
		if sides = append(sides, side); side.NotQueried != "" {
			continue
		}
		i := slices.IndexFunc(s.Nodes, func(n cluster.NodeStatus) bool { return n.Name == a.Node })
		if i >= 0 {
			s.Nodes[i].Reach = reachedOf(a.Reach)
		}
	}
	return append(notKnown, NotQueried(sides)...)
}

// reachedOf is the summary of one agent; nil: that agent does not probe.
func reachedOf(r *api.AgentReach) *cluster.Reached {
	if r == nil {
		return nil
	}
	out := &cluster.Reached{Probed: r.Asked, Reached: r.Reached, Away: r.Away, Problem: r.Problem}
	for _, f := range r.Findings {
		if !slices.Contains(out.NotReached, f.Node) {
			out.NotReached = append(out.NotReached, f.Node)
		}
	}
	return out
}

// Cell is a node's cell in the table of nodes; empty: unknown, or not probed.
func Cell(p *report.Printer, r *cluster.Reached) string {
	switch {
	case r == nil:
		return ""
	case r.Problem != "":
		return p.Paint(report.Middle, "not probed")
	}
	text := fmt.Sprintf("%d/%d", r.Reached, r.Probed)
	if r.Away > 0 {
		text += fmt.Sprintf(", %d away", r.Away)
	}
	if len(r.NotReached) > 0 {
		return text + ", " + p.Paint(report.Bad, "not: "+strings.ReplaceAll(report.Some(r.NotReached), ", ", ","))
	}
	if r.Reached == r.Probed && r.Probed > 0 {
		return p.Paint(report.Good, text)
	}
	return text
}

// Ready says whether a node's agent is ready, and why not.
func Ready(p *report.Printer, a *cluster.Agent) string {
	switch {
	case a == nil:
		return "no Pod"
	case a.Ready:
		return p.Paint(report.Good, "ready")
	}
	return p.Paint(report.Bad, "not ready") + ": " + a.Why
}

// NodeReady is the cell for the Node's condition Ready.
func NodeReady(p *report.Printer, ready string) string {
	switch ready {
	case "True":
		return p.Paint(report.Good, "yes")
	case "":
		return "never reported"
	case "False":
		return p.Paint(report.Bad, "no")
	}
	return p.Paint(report.Bad, "unknown")
}
