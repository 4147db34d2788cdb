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

// Reasons of Events on policies.
const (
	ReasonNotEnforced    = "PolicyNotEnforced"
	ReasonSelectsNothing = "PolicySelectsNothing"
	ReasonUnknownPort    = "PolicyNamesUnknownPort"
)

const notEnforced = "Fairlead, the network of this cluster's pods, does not enforce this network policy: the traffic that " +
	"it should block gets through."

const (
	// renewEvents is well below the hour after which the API server deletes an Event.
	renewEvents = 30 * time.Minute
	// reporters is how many agents report one policy: the first, and two that do it a while later if the first has not. In
	// a cluster of thousands of nodes, not all should write.
	reporters = 3
	// rankAgain is how soon an agent that is not a reporter checks again whether it is: the others' Nodes may be gone. A
	// check costs a hash of each Node.
	rankAgain = 10 * time.Minute
)

// Policies reports network policies that are not enforced, in the log, in a metric, and by a Warning Event on each;
// and, by such an Event, those that have no effect.
type Policies struct {
	source inputs.Source
	node   string
	// enforced: the policies that can be enforced are enforced.
	enforced bool
	every    api.AgentIntervals
	warn     func(context.Context, string, kube.Warning) error
	log      logr.Logger
	metrics  *status.Metrics

	seen   map[string]bool      // policies that the log has named
	due    map[string]time.Time // when to write a finding's Event
	idle   idleness
	failed bool // the last Event was not written, which is logged once
}

// NewPolicies returns the reporter of policies; enforced says that the policies that can be enforced are. source has
// the policies, and the Nodes by which agents agree on who reports which.
func NewPolicies(source inputs.Source, client *kube.Client, node string, enforced bool, every api.AgentIntervals,
	metrics *status.Metrics, log logr.Logger) *Policies {
	return &Policies{source: source, node: node, enforced: enforced, every: every, warn: client.Warn, log: log.WithName("policies"),
		metrics: metrics, seen: map[string]bool{}, due: map[string]time.Time{}, idle: newIdleness(client)}
}

// Run reports until ctx ends.
func (t *Policies) Run(ctx context.Context) {
	signal.Loop(ctx, t.every.Policies, nil, func(ctx context.Context) { t.check(ctx, time.Now()) })
}

func (t *Policies) check(ctx context.Context, now time.Time) {
	s := t.source.Snapshot()
	policies := t.unenforced(s.NetworkPolicies)
	t.metrics.Health.Policies.Set(float64(len(policies)))
	t.logNew(policies)
	findings := t.findings(ctx, s, policies, now)
	maps.DeleteFunc(t.due, func(name string, _ time.Time) bool {
		_, there := findings[name]
		return !there
	})
	if s.Unread {
		return // without Nodes, every agent would consider itself the first
	}
	for _, name := range slices.Sorted(maps.Keys(findings)) {
		due, known := t.due[name]
		if known && now.Before(due) {
			continue
		}
		f := findings[name]
		switch rank := rankOf(t.node, f.about, s.Nodes); {
		case rank >= reporters:
			t.due[name] = now.Add(rankAgain)
		case rank > 0 && !known:
			t.due[name] = now.Add(time.Duration(rank) * t.every.PolicyStep)
		default:
			err := t.warn(ctx, t.node, f.warning(rank > 0))
			if err != nil && !t.failed && ctx.Err() == nil {
				t.log.Error(err, "writing an Event about a policy; will retry")
			}
			if t.failed = err != nil; t.failed && !refused(err) {
				return // the API server is not well: the rest would fail too
			}
			t.due[name] = now.Add(renewEvents)
		}
	}
}

// findings are those about policies that are not enforced, and about those that have no effect.
func (t *Policies) findings(ctx context.Context, s *inputs.Snapshot, unenforced map[string]inputs.NetworkPolicy,
	now time.Time) map[string]finding {
	out := map[string]finding{}
	for name, p := range unenforced {
		out[name] = finding{p, ReasonNotEnforced, notEnforced}
	}
	if t.enforced && !s.Unread {
		ours := func(p inputs.NetworkPolicy) bool { return rankOf(t.node, p, s.Nodes) < reporters }
		maps.Copy(out, t.idle.findings(ctx, enforceable(s.NetworkPolicies), ours, now))
	}
	return out
}

// enforceable are the policies that can be enforced.
func enforceable(all map[string]inputs.NetworkPolicy) map[string]inputs.NetworkPolicy {
	out := map[string]inputs.NetworkPolicy{}
	for name, p := range all {
		if p.Enforceable() {
			out[name] = p
		}
	}
	return out
}

// finding is what an Event is about.
type finding struct {
	about           inputs.NetworkPolicy
	reason, message string
}

// unenforced are the policies that are not enforced.
func (t *Policies) unenforced(all map[string]inputs.NetworkPolicy) map[string]inputs.NetworkPolicy {
	if !t.enforced {
		return all
	}
	out := maps.Clone(all)
	maps.DeleteFunc(out, func(_ string, p inputs.NetworkPolicy) bool { return p.Enforceable() })
	return out
}

// refused reports whether the API server rejects only this Event, as in a namespace that is being deleted.
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
		t.log.Info("these network policies are not enforced: the traffic that they should block gets through",
			"policies", report.Some(added), "all", len(policies))
	}
}

// rankOf is how many other nodes come before this one to report p. The order differs from policy to policy, and all
// agents agree on it.
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

func (f finding) warning(once bool) kube.Warning {
	p := f.about
	return kube.Warning{
		About: corev1.ObjectReference{APIVersion: p.APIVersion, Kind: p.Kind, Namespace: p.Namespace, Name: p.Name,
			UID: types.UID(p.UID)},
		Reason: f.reason, Message: f.message, Once: once,
	}
}
