package events

import (
	"context"
	"fmt"
	"time"

	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/diagnose/verdict"
	"github.com/fairlead-cni/fairlead/kube"
	"github.com/fairlead-cni/fairlead/kube/inputs"
	"github.com/fairlead-cni/fairlead/policy"
	"github.com/fairlead-cni/fairlead/policy/compile"
)

const (
	// idleFor is how long a policy is known before it is asked whether it does anything, and how long it must have done
	// nothing before it has an Event: many are created before their pods.
	idleFor = 2 * time.Minute
	// idleAgain is how often that is asked about one that does something. Each time some of the cluster's pods are read.
	idleAgain = 30 * time.Minute
	// idleRead bounds it.
	idleRead = 10 * time.Second
)

// idleness is what is known of policies that do nothing to any pod. An agent knows the pods that policies of its own
// pods are about, and no others: for this the API server is asked, about one policy at a time.
type idleness struct {
	ask   func(context.Context, policy.Ref) (*compile.Idle, error)
	known map[string]idle
}

// idle is what is known of one policy.
type idle struct {
	due   time.Time // when it is asked about next
	since time.Time // since when it does nothing; zero if it does
	found *compile.Idle
}

func newIdleness(client *kube.Client) idleness {
	return idleness{known: map[string]idle{}, ask: func(ctx context.Context, ref policy.Ref) (*compile.Idle, error) {
		ctx, cancel := context.WithTimeout(ctx, idleRead)
		defer cancel()
		return verdict.Idle(ctx, client, ref)
	}}
}

// findings are about those policies that have done nothing for a while. ours says of a policy whether this agent asks
// about it: that costs a hash of each Node, and is found out only when the policy is due.
func (i *idleness) findings(ctx context.Context, all map[string]inputs.NetworkPolicy,
	ours func(inputs.NetworkPolicy) bool, now time.Time) map[string]finding {
	out, known := map[string]finding{}, map[string]idle{}
	failed := false
	for name, p := range all {
		k, before := i.known[name]
		if !before {
			k.due = now.Add(idleFor)
		}
		switch {
		case now.Before(k.due) || failed: // after one failure the rest would fail too
		case ours(p):
			k, failed = i.look(ctx, p, k, now)
		default:
			k = idle{due: now.Add(rankAgain)}
		}
		if known[name] = k; k.found != nil && now.Sub(k.since) >= idleFor {
			f := idleFinding(p, k.found.Ports)
			out[f.reason+" "+name] = f
		}
	}
	i.known = known
	return out
}

// look asks about one policy.
func (i *idleness) look(ctx context.Context, p inputs.NetworkPolicy, k idle, now time.Time) (next idle, failed bool) {
	found, err := i.ask(ctx, policy.Ref{Kind: p.Kind, Namespace: p.Namespace, Name: p.Name})
	switch {
	case err != nil:
		k.due = now.Add(idleFor)
		return k, true
	case found == nil:
		return idle{due: now.Add(idleAgain)}, false
	case k.found == nil || len(k.found.Ports) > 0 != (len(found.Ports) > 0):
		k.since = now
	}
	k.due, k.found = now.Add(idleFor), found
	return k, false
}

func idleFinding(p inputs.NetworkPolicy, ports []policy.NamedPort) finding {
	if len(ports) == 0 {
		return finding{p, ReasonSelectsNothing, "This policy selects no pod: what it should keep out gets in, unless its pods " +
			"are yet to come. Compare its selectors with the labels of pods and namespaces."}
	}
	texts := make([]string, 0, len(ports))
	for _, port := range ports {
		texts = append(texts, port.String())
	}
	return finding{p, ReasonUnknownPort, fmt.Sprintf("Rules of this policy name %s, and no pod that they could be about "+
		"has a port of that name: they accept or deny nothing by it.", report.Some(texts))}
}
