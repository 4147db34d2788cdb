package policies

import (
	"testing"

	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/openflow/policing"
	"github.com/fairlead-cni/fairlead/policy/compile"
	"github.com/fairlead-cni/fairlead/test/flowtest"
)

// The switch lists the flows of policies as they were sent, even those of a block of all addresses: a resync without
// external changes finds no differences.
func TestResyncFindsNothing(t *testing.T) {
	w := newWorld(t, networkPolicy(t, "all", `{"podSelector": {"matchLabels": {"app": "judged"}},
		"policyTypes": ["Ingress", "Egress"],
		"ingress": [{"from": [{"ipBlock": {"cidr": "0.0.0.0/0"}}, {"ipBlock": {"cidr": "::/0", "except": ["fd00::/8"]}}]}],
		"egress": [{"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"]}}, {"ipBlock": {"cidr": "::/0"}}],
			"ports": [{"port": 1000, "endPort": 2000}]}]}`))
	w.update()
	s := flowtest.Dial(t, flowtest.Node(t), openflow.Dial)
	s.SetPolicies(w.Units(), true)
	flowtest.Sync(t, s, w.base())
	for range 2 { // a wrong repair by the first would be repaired again by the second
		s.Resync()
		if got := flowtest.Sync(t, s, w.base()); got != (openflow.Changes{}) {
			t.Errorf("a resync found %+v", got)
		}
	}
}

// The flows of one rule never have a priority of another rule, as that would lose the order of the rules.
func TestPriorities(t *testing.T) {
	taken := map[uint16]uint32{}
	for rank := range uint32(compile.Ranks) {
		for _, kind := range []compile.Kind{compile.Rule, compile.Whole} {
			for _, f := range policing.Twice(openflow.Flow{Priority: priority(compile.Match{Kind: kind, Rank: rank})}) {
				if other, is := taken[f.Priority]; is || f.Priority <= prioIsolated || f.Priority >= prioClosed-1 {
					t.Fatalf("ranks %d and %d both have priority %d", rank, other, f.Priority)
				}
				taken[f.Priority] = rank
			}
		}
	}
}
