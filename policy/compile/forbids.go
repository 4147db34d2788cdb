package compile

import (
	"slices"

	"github.com/fairlead-cni/fairlead/policy"
)

// narrows reports whether an address whose sets change from before to now may be denied what it was accepted for.
func narrows(before, now []*set) bool {
	denies := func(s *set) bool {
		for n := range s.users {
			if n.rule.Verdict != policy.Accept {
				return true
			}
		}
		return false
	}
	return slices.ContainsFunc(before, func(s *set) bool { return !slices.Contains(now, s) }) ||
		slices.ContainsFunc(now, func(s *set) bool { return !slices.Contains(before, s) && denies(s) })
}

// forbids reports whether a flow that replaces another, or none, may deny what was accepted; now is nil for a removed
// one. For classes of addresses, narrows decides.
func (s *side) forbids(c *Compiler, m Match, old Flow, was bool, now *Flow) bool {
	switch {
	case m.Kind == Isolated || m.Kind == Closed:
		return !was
	case m.Kind == Class && (!was || s.numbers[m.Class] == nil):
		return false // of a class that no address had or has
	case m.Pod != (policy.PodKey{}) && c.local[m.Pod] == nil:
		return false // the pod has gone
	case m.Tier != policy.NetworkPolicy || now == nil:
		return true
	}
	return slices.ContainsFunc(old.Clauses, func(had Clause) bool { return !slices.Contains(now.Clauses, had) })
}
