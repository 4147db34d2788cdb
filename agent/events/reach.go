package events

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/agent/signal"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/diagnose/reach"
	"github.com/fairlead-cni/fairlead/kube"
)

// ReasonNotReached is of the Event on a Node whose pods are not reached, or do not reach others.
const ReasonNotReached = "PodsNotReached"

// reachEvery is how often findings are looked at.
const reachEvery = 5 * time.Second

// Reach writes an Event for each Node whose pods are not reached: on the own Node where the cause is here, or all
// paths have it, else on the other one. A Node that several agents do not reach has one Event, with the last message;
// those that probe it are few.
type Reach struct {
	node    string
	report  func() *api.AgentReach
	warn    func(context.Context, string, kube.Warning) error
	log     logr.Logger
	written map[string]cause // by Node
	failed  bool             // the last Event was not written, which is logged once
}

// cause is what an Event was written about, and when.
type cause struct {
	words string
	at    time.Time
}

// NewReach returns what reports the findings of report: nil while nothing is probed. client is nil where inputs come
// from a directory.
func NewReach(report func() *api.AgentReach, client *kube.Client, node string, log logr.Logger) *Reach {
	return &Reach{node: node, report: report, warn: client.Warn, log: log.WithName("reach"), written: map[string]cause{}}
}

// Run writes Events until ctx ends.
func (r *Reach) Run(ctx context.Context) {
	signal.Loop(ctx, reachEvery, nil, func(ctx context.Context) { r.look(ctx, time.Now()) })
}

// look writes what is new, or what the API server is about to forget.
func (r *Reach) look(ctx context.Context, now time.Time) {
	found := notReached(r.node, r.report())
	for about := range r.written {
		if _, still := found[about]; !still {
			delete(r.written, about)
		}
	}
	for about, f := range found {
		last, told := r.written[about]
		if told && last.words == f.causes && now.Sub(last.at) < renewEvents {
			continue
		}
		err := r.warn(ctx, r.node,
			kube.Warning{About: kube.NodeReference(about), Reason: ReasonNotReached, Message: f.message})
		if err == nil {
			r.written[about] = cause{f.causes, now}
		} else if !r.failed && ctx.Err() == nil {
			r.log.Error(err, "writing an Event on a Node")
		}
		r.failed = err != nil
	}
}

// unreached is what is told of a Node. Its causes change less often than its message, which has numbers.
type unreached struct{ causes, message string }

// notReached is what is to be told, by the Node that it is told of.
func notReached(own string, report *api.AgentReach) map[string]unreached {
	if report == nil {
		return nil
	}
	about := map[string][]api.ReachFinding{}
	for _, f := range report.Findings {
		node := f.Node
		if isHere(reach.Cause(f.Cause)) {
			node = own
		}
		about[node] = append(about[node], f)
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
		found[node] = unreached{strings.Join(slices.Compact(causes), " "),
			message + `. "fairleadctl doctor reach" on node ` + own + " has the evidence and the remedy"}
	}
	return found
}

// isHere reports whether a cause is one of this node, or of all its paths.
func isHere(c reach.Cause) bool {
	here := []reach.Cause{reach.CauseAlone, reach.CauseBlocked, reach.CauseNoTunnel, reach.CauseFirewall,
		reach.CauseDropped, reach.CauseRoute, reach.CauseAddress}
	return slices.Contains(here, c)
}
