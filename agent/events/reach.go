package events

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/agent/signal"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/diagnose/reach"
	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/kube"
)

// ReasonNotReached is the reason of the Event on a Node whose pods are not reached, or do not reach others.
const ReasonNotReached = "PodsNotReached"

// reachEvery is how often findings are checked.
const reachEvery = 5 * time.Second

const (
	// maxNamed is on how many other Nodes an agent writes Events. If there are more, it writes one on its own Node that
	// says how many.
	maxNamed = 2
	// maxEvents is how many Events an agent writes within eventsIn, so that a fault that thousands see causes no flood.
	maxEvents, eventsIn = 2, time.Minute
)

// Reach writes an Event for each Node whose pods are not reached: on the own Node if the cause is here, all paths have
// it, or many Nodes are not reached, else on the other one. A Node that several agents do not reach has one Event, with
// the last message; only few agents probe it.
type Reach struct {
	node    string
	report  func() *api.AgentReach
	warn    func(context.Context, string, kube.Warning) error
	log     logr.Logger
	written map[string]cause // by Node
	tried   []time.Time      // when the recent Events were written
	failed  bool             // the last Event was not written, which is logged once
}

// cause is what an Event was written about, and when.
type cause struct {
	words string
	nodes int
	at    time.Time
}

// NewReach returns the reporter of report's findings, which are nil while nothing is probed. client is nil where inputs
// come from a directory.
func NewReach(report func() *api.AgentReach, client *kube.Client, node string, log logr.Logger) *Reach {
	return &Reach{node: node, report: report, warn: client.Warn, log: log.WithName("reach"), written: map[string]cause{}}
}

// Run writes Events until ctx ends.
func (r *Reach) Run(ctx context.Context) {
	signal.Loop(ctx, reachEvery, nil, func(ctx context.Context) { r.write(ctx, time.Now()) })
}

// write writes the Events that are new, or that the API server is about to delete.
func (r *Reach) write(ctx context.Context, now time.Time) {
	found := notReached(r.node, r.report())
	maps.DeleteFunc(r.written, func(about string, _ cause) bool {
		_, still := found[about]
		return !still
	})
	r.tried = slices.DeleteFunc(r.tried, func(at time.Time) bool { return now.Sub(at) >= eventsIn })
	for _, about := range r.due(found, now) {
		if len(r.tried) >= maxEvents {
			return
		}
		r.tried = append(r.tried, now)
		f := found[about]
		err := r.warn(ctx, r.node,
			kube.Warning{About: kube.NodeReference(about), Reason: ReasonNotReached, Message: f.message})
		if err == nil {
			r.written[about] = cause{f.causes, f.nodes, now}
		} else if !r.failed && ctx.Err() == nil {
			r.log.Error(err, "writing an Event on a Node")
		}
		r.failed = err != nil
	}
}

// due are the Nodes that need an Event, those first that have waited longest.
func (r *Reach) due(found map[string]unreached, now time.Time) (nodes []string) {
	for about, f := range found {
		last := r.written[about]
		if last.words != f.causes || f.nodes >= 2*last.nodes || now.Sub(last.at) >= renewEvents {
			nodes = append(nodes, about)
		}
	}
	slices.SortFunc(nodes, func(a, b string) int {
		return cmp.Or(r.written[a].at.Compare(r.written[b].at), cmp.Compare(a, b))
	})
	return nodes
}

// unreached is what is reported on a Node: how many Nodes it is about, and the causes, which change less often than the
// message, which has numbers.
type unreached struct {
	causes, message string
	nodes           int
}

// notReached is what to report, by the Node that the Event is on.
func notReached(own string, r *api.AgentReach) map[string]unreached {
	if r == nil {
		return nil
	}
	about := map[string][]api.ReachFinding{}
	for _, f := range r.Findings {
		node := f.Node
		if isHere(reach.Cause(f.Cause)) {
			node = own
		}
		about[node] = append(about[node], f)
	}
	hint := `. "fairleadctl doctor reach" on node ` + own + " has the evidence and the remedy"
	others := slices.DeleteFunc(slices.Sorted(maps.Keys(about)), func(node string) bool { return node == own })
	if len(others) > maxNamed {
		return map[string]unreached{own: {"many", summary(others, about[own], r.Asked) + hint, len(others)}}
	}
	found := map[string]unreached{}
	for node, all := range about {
		first := all[0]
		message := first.Text
		if node != own {
			message = fmt.Sprintf("seen from node %s: %s", own, first.Text)
		}
		if more := len(all) - 1; more > 0 {
			message += fmt.Sprintf("; and %d more of its paths fail", more)
		}
		var causes []string
		for _, f := range all {
			causes = append(causes, f.Cause)
		}
		slices.Sort(causes)
		found[node] = unreached{strings.Join(slices.Compact(causes), " "), message + hint, 1}
	}
	return found
}

// summary is the message about many other nodes, in addition to the fault on this node.
func summary(others []string, here []api.ReachFinding, asked int) string {
	message := fmt.Sprintf("pods on this node and on %d of the %d nodes that it probes do not reach each other: %s",
		len(others), asked, report.Some(others))
	if len(here) > 0 {
		return here[0].Text + "; and " + message
	}
	return message
}

// isHere reports whether a cause is on this node, or common to all its paths.
func isHere(c reach.Cause) bool {
	here := []reach.Cause{reach.CauseAlone, reach.CauseBlocked, reach.CauseNoTunnel, reach.CauseFirewall,
		reach.CauseDropped, reach.CauseRoute, reach.CauseAddress}
	return slices.Contains(here, c)
}
