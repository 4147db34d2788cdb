package events

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-cni/fairlead/agent/signal"
	"github.com/fairlead-cni/fairlead/agent/status"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/kube"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

const (
	// renewEvents is well below the hour after which the API server
	// forgets an Event.
	renewEvents = 30 * time.Minute
	// reporters is how many agents report one policy: the first, and two that
	// step in a while later if it has not. In a cluster of thousands of nodes
	// not all should write.
	reporters = 3
	// rankAgain is how soon an agent that is not among them asks whether it is
	// now: the others' Nodes may be gone. It costs a hash of each Node.
	rankAgain = 10 * time.Minute
)

// Policies reports network policies that are not enforced: in the log, in a metric, and by a Warning Event on
// each.
type Policies struct {
	source inputs.Source
	node   string
	// enforced: those that can be enforced are.
	enforced bool
	every    api.AgentIntervals
	warn     func(context.Context, string, kube.Warning) error
	log      logr.Logger
	metrics  *status.Metrics

	seen   map[string]bool      // policies that the log has named
	due    map[string]time.Time // when to write a policy's Event
	failed bool                 // the last Event was not written, which is logged once
}

// NewPolicies returns what reports them; enforced says that those are enforced that can be. source has the policies,
// and the Nodes by which agents agree on who reports which.
func NewPolicies(source inputs.Source, client *kube.Client, node string, enforced bool, every api.AgentIntervals,
	metrics *status.Metrics, log logr.Logger) *Policies {
	return &Policies{source: source, node: node, enforced: enforced, every: every, warn: client.Warn, log: log.WithName("policies"),
		metrics: metrics, seen: map[string]bool{}, due: map[string]time.Time{}}
}

// Run reports until ctx ends.
func (t *Policies) Run(ctx context.Context) {
	signal.Loop(ctx, t.every.Policies, nil, func(ctx context.Context) { t.look(ctx, time.Now()) })
}

func (t *Policies) look(ctx context.Context, now time.Time) {
	s := t.source.Snapshot()
	policies := t.notEnforced(s.NetworkPolicies)
	t.metrics.Health.Policies.Set(float64(len(policies)))
	t.logNew(policies)
	maps.DeleteFunc(t.due, func(name string, _ time.Time) bool {
		_, there := policies[name]
		return !there
	})
	if s.Unread {
		return // without Nodes every agent would take itself for the first
	}
	for _, name := range slices.Sorted(maps.Keys(policies)) {
		due, known := t.due[name]
		if known && now.Before(due) {
			continue
		}
		p := policies[name]
		switch rank := rankOf(t.node, p, s.Nodes); {
		case rank >= reporters:
			t.due[name] = now.Add(rankAgain)
		case rank > 0 && !known:
			t.due[name] = now.Add(time.Duration(rank) * t.every.PolicyStep)
		default:
			err := t.warn(ctx, t.node, notEnforced(p, rank > 0))
			if err != nil && !t.failed && ctx.Err() == nil {
				t.log.Error(err, "writing an Event about a policy that is not enforced; will retry")
			}
			if t.failed = err != nil; t.failed && !refused(err) {
				return // the API server is not well: the rest would fail too
			}
			t.due[name] = now.Add(renewEvents)
		}
	}
}

// notEnforced are those that nothing enforces.
func (t *Policies) notEnforced(all map[string]inputs.NetworkPolicy) map[string]inputs.NetworkPolicy {
	if !t.enforced {
		return all
	}
	out := maps.Clone(all)
	maps.DeleteFunc(out, func(_ string, p inputs.NetworkPolicy) bool { return p.Enforceable() })
	return out
}

// refused reports whether the API server rejects this one Event, as in a
// namespace that is about to go.
func refused(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || apierrors.IsInvalid(err)
}

// logNew names each policy once.
func (t *Policies) logNew(policies map[string]inputs.NetworkPolicy) {
	var added []string
	for _, name := range slices.Sorted(maps.Keys(policies)) {
		if !t.seen[name] {
			added = append(added, name)
		}
	}
	t.seen = map[string]bool{}
	for name := range policies {
		t.seen[name] = true
	}
	if len(added) > 0 {
		t.log.Info("these network policies are not enforced: what they should keep out gets in",
			"policies", report.Some(added), "all", len(policies))
	}
}

// rankOf is how many other nodes come before this one to report p. The order is
// another for each policy, and all agents agree on it.
func rankOf(node string, p inputs.NetworkPolicy, nodes map[string]inputs.Node) int {
	place := func(node string) uint64 {
		h := fnv.New64a()
		fmt.Fprint(h, node, " ", p, " ", p.UID)
		return h.Sum64()
	}
	own, rank := place(node), 0
	for name := range nodes {
		if name != node && place(name) < own {
			rank++
		}
	}
	return rank
}

func notEnforced(p inputs.NetworkPolicy, once bool) kube.Warning {
	return kube.Warning{
		About: corev1.ObjectReference{APIVersion: p.APIVersion, Kind: p.Kind, Namespace: p.Namespace, Name: p.Name,
			UID: types.UID(p.UID)},
		Reason:  "PolicyNotEnforced",
		Message: "Fairlead, the network of this cluster's pods, does not enforce this network policy: what it should keep out gets in.",
		Once:    once,
	}
}
