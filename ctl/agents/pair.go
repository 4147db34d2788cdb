package agents

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/diagnose/checks"
	"github.com/fairlead-cni/fairlead/diagnose/cluster"
	"github.com/fairlead-cni/fairlead/diagnose/reach"
	"github.com/fairlead-cni/fairlead/diagnose/report"
)

// Pair is the combined result of two nodes' agents: the output of "fairleadctl reach".
type Pair struct {
	Directions []reach.Direction `json:"directions"`
	Findings   []report.Finding  `json:"findings"`
}

// Pair queries the agents of two nodes. If they do not probe each other at the moment, they are requested to, for most
// of the limit.
func (k Querier) Pair(ctx context.Context, limit time.Duration, a, b string) (p Pair, err error) {
	v := cluster.Read(ctx, k.Client, cluster.Nodes)
	if err := v.Missing(cluster.Nodes); err != nil {
		return p, err
	}
	for _, name := range []string{a, b} {
		if !slices.ContainsFunc(v.Nodes, func(n cluster.Node) bool { return n.Name == name }) {
			return p, fmt.Errorf("there is no Node %s: kubectl get nodes lists them", name)
		}
	}
	if p.Directions, err = k.directions(ctx, limit, a, b); err != nil {
		return p, err
	}
	// One end may have answered before the other had begun to send.
	if slices.ContainsFunc(p.Directions, reach.Direction.Bad) {
		if again, err := k.directions(ctx, limit, a, b); err == nil && !slices.ContainsFunc(again, unknown) {
			p.Directions = again
		}
	}
	p.Findings = append([]report.Finding{}, checks.Directions(p.Directions)...)
	return p, nil
}

func unknown(w reach.Direction) bool { return w.Is == reach.Unknown }

func (k Querier) directions(ctx context.Context, limit time.Duration, a, b string) ([]reach.Direction, error) {
	answers, err := k.query(ctx, limit, []string{a, b}, func(node string) string {
		return map[string]string{a: b, b: a}[node]
	})
	if err != nil {
		return nil, err
	}
	return reach.Join(answers[0].Side(b), answers[1].Side(a)), nil
}

// Write writes it as text.
func (p Pair) Write(out *report.Printer) {
	rows := [][]string{{"FROM PODS ON", "TO PODS ON", "FAMILY", "PACKETS", "SINCE"}}
	for _, w := range p.Directions {
		rows = append(rows, []string{w.From, w.To, w.Family, directionSummary(out, w), clock(w.Since)})
	}
	out.Table(rows...)
	out.Line("")
	for i, f := range p.Findings {
		f.Write(out, i+1, f.Check+": ")
	}
}

func directionSummary(p *report.Printer, w reach.Direction) string {
	switch w.Is {
	case reach.Works:
		return p.Paint(report.Good, "pass")
	case reach.Fails:
		return p.Paint(report.Bad, "do not pass")
	case reach.Narrow:
		return p.Paint(report.Bad, "pass if small")
	case reach.NoTCP:
		return p.Paint(report.Bad, "pass, but not TCP")
	case reach.Lossy:
		return p.Paint(report.Bad, "are partly lost")
	}
	return p.Paint(report.Middle, "not known")
}
