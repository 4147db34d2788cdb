package compile_test

import (
	"strings"
	"testing"

	"github.com/fairlead-cni/fairlead/policy"
	"github.com/fairlead-cni/fairlead/policy/compile"
)

// If there are more rules than can be ordered, only those that deny are enforced: no order of them lets anything
// through.
func TestRulesBeyondOrder(t *testing.T) {
	rule := func(i int, v policy.Verdict, port uint16) policy.Rule {
		return policy.Rule{Index: i, Verdict: v, AnyPeer: true, AnyPort: port == 0,
			Ports: []policy.PortRange{{Protocol: policy.TCP, First: max(port, 1), Last: port}}[:min(port, 1)]}
	}
	o := newOne(t)
	set := func(name string, priority int, rules ...policy.Rule) {
		o.SetPolicy(policy.Policy{Ref: policy.Ref{Kind: "ClusterNetworkPolicy", Name: name}, Tier: policy.Admin,
			Priority: priority, Subject: policy.AllPods(), Rules: [2][]policy.Rule{policy.Ingress: rules}})
	}
	first := func(n int) {
		o.SetPolicy(policy.Policy{Ref: policy.Ref{Kind: "ClusterNetworkPolicy", Name: "first"}, Tier: policy.Admin,
			Subject: policy.Subjects{Namespace: "another"}, Rules: [2][]policy.Rule{policy.Ingress: {rule(n-1, policy.Accept, 0)}}})
	}
	problems := func() string { return strings.Join(o.Problems(), "; ") }

	set("late", 5, rule(0, policy.Accept, 80), rule(1, policy.Deny, 80), rule(2, policy.Pass, 0))
	set("last", 6, rule(0, policy.Deny, 0))
	for _, n := range []int{1, compile.Ordered - 4} {
		first(n)
		o.want("10.0.0.9", policy.Accept, "all rules are in order")
		if got := problems(); got != "" {
			t.Errorf("after %d rules: %s", n, got)
		}
	}
	for _, n := range []int{compile.Ordered, 10 * compile.Ordered, 100 * compile.Ordered} {
		first(n)
		o.want("10.0.0.9", policy.Deny, "a rule that denies, and comes after one that accepts")
		if got := problems(); !strings.Contains(got, "ClusterNetworkPolicy late: 2 rules that accept or pass have no effect") ||
			strings.Contains(got, "last") != (n > 516000) {
			t.Errorf("after %d rules: %s", n, got)
		}
	}
	first(1)
	o.want("10.0.0.9", policy.Accept, "all rules are in order again")
}

// Each rank up to the last has one of the available places, and no place has more rules than a flow can have.
func TestPlaces(t *testing.T) {
	last, rules := uint32(0), 0
	for rank := range uint32(30 * compile.Ordered) {
		at := compile.Place(rank)
		switch rules++; {
		case at != last && at != last+1 || at >= compile.Ranks || rank < compile.Ordered && at != rank:
			t.Fatalf("rule %d has place %d, after %d", rank, at, last)
		case at != last:
			last, rules = at, 1
		case rules > compile.MaxClauses/2:
			t.Fatalf("%d rules have place %d", rules, at)
		}
	}
}
