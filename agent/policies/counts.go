package policies

import (
	"github.com/fairlead-cni/fairlead/kube/feed"
	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/policy"
	"github.com/fairlead-cni/fairlead/policy/compile"
)

// Counter identifies what a policy does in one direction. Without a policy name, it is what a Namespace's
// NetworkPolicies do together: they deny its pods what none of their rules accepts.
type Counter struct {
	Policy    policy.Ref
	Direction policy.Direction
	Denies    bool
}

// Labels are kind, namespace and name of the policy, and the direction.
func (c Counter) Labels() []string {
	return []string{c.Policy.Kind, c.Policy.Namespace, c.Policy.Name, c.Direction.String()}
}

// counters are the counts of the flows of verdicts.
type counters struct {
	of   map[openflow.Key]Counter
	seen map[openflow.Key]uint64 // packets, when they were last counted
}

func newCounters() counters {
	return counters{of: map[openflow.Key]Counter{}, seen: map[openflow.Key]uint64{}}
}

// Count returns, for each existing Counter, how many packets the switch's flows have matched since the last call: the
// first of an accepted connection, all of a denied one. packets are the counts of the switch's flows of verdicts; a
// flow that was replaced starts at 0.
func (r *Rules) Count(packets map[openflow.Key]uint64) map[Counter]uint64 {
	out := map[Counter]uint64{}
	for key, c := range r.verdicts.of {
		now, before := packets[key], r.verdicts.seen[key]
		if now < before {
			before = 0
		}
		out[c] += now - before
		r.verdicts.seen[key] = now
	}
	return out
}

// countFlows records which flows are counted for a compiler's flow, in place of the previous ones.
func (r *Rules) countFlows(m compile.Match, f *compile.Flow, flows []openflow.Flow) {
	if m.Kind != compile.Rule && m.Kind != compile.Whole && m.Kind != compile.Isolated {
		return
	}
	if f == nil {
		for _, gone := range r.flows[r.ids[m]].Flows {
			delete(r.verdicts.of, gone.Key())
			delete(r.verdicts.seen, gone.Key())
		}
		return
	}
	c := Counter{Policy: policy.Ref{Kind: feed.NetworkPolicy, Namespace: m.Pod.Namespace}, Direction: m.Direction,
		Denies: f.Verdict == policy.Deny}
	if rule, found := r.compiler.Rule(f.By); found {
		c.Policy = rule.Policy
	}
	for _, flow := range flows {
		if flow.Kind == openflow.KindVerdict && f.Verdict != policy.Pass {
			r.verdicts.of[flow.Key()] = c
		}
	}
}
