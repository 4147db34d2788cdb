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
	// idleFor is how long a policy must exist before it is checked whether it has any effect, and how long it must have
	// had none before it gets an Event: many are created before their pods.
	idleFor = 2 * time.Minute
	// idleAgain is how often that is checked for a policy that has an effect. Each check reads some of the cluster's pods.
	idleAgain = 30 * time.Minute
	// idleRead bounds one check.
	idleRead = 10 * time.Second
)

// idleness is what is known about policies that have no effect on any pod. An agent has only the pods that its own
// pods' policies refer to, so it queries the API server for the others, for one policy at a time.
type idleness struct {
	query func(context.Context, policy.Ref) (*compile.Idle, error)
	known map[string]idle
}

// idle is what is known about one policy.
type idle struct {
	due   time.Time // when it is checked next
	since time.Time // since when it has no effect; zero if it has
	found *compile.Idle
}

func newIdleness(client *kube.Client) idleness {
	return idleness{known: map[string]idle{}, query: func(ctx context.Context, ref policy.Ref) (*compile.Idle, error) {
		ctx, cancel := context.WithTimeout(ctx, idleRead)
		defer cancel()
		return verdict.Idle(ctx, client, ref)
	}}
}

// findings are about the policies that have had no effect for a while. ours reports whether this agent checks a policy:
// that costs a hash of each Node, and is evaluated only when the policy is due.
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
			k, failed = i.check(ctx, p, k, now)
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

// check finds out whether one policy is idle.
func (i *idleness) check(ctx context.Context, p inputs.NetworkPolicy, k idle, now time.Time) (next idle, failed bool) {
	found, err := i.query(ctx, policy.Ref{Kind: p.Kind, Namespace: p.Namespace, Name: p.Name})
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
		return finding{p, ReasonSelectsNothing, "This policy selects no pods: the traffic that it should block gets through, unless its pods " +
			"are yet to be created. Compare its selectors with the labels of pods and namespaces."}
	}
	texts := make([]string, 0, len(ports))
	for _, port := range ports {
		texts = append(texts, port.String())
	}
	return finding{p, ReasonUnknownPort, fmt.Sprintf("Rules of this policy name %s, and no pod that they could apply to "+
		"has a port of that name: they accept or deny nothing by it.", report.Some(texts))}
}
