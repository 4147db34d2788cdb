package compile

import (
	"fmt"
	"slices"

	"github.com/fairlead-cni/fairlead/policy"
)

// Ranks is the number of ranks, and Ordered how many rules of a tier and direction get their own. Of the rules after
// these only deny rules are enforced: then their order does not matter, and they share ranks, at most as many per rank
// as a flow can have clauses. Later rules that accept or pass have no effect, so what they would let past a later deny
// rule is denied. Rules beyond all ranks deny everything for their pods.
const (
	Ranks   = 16250
	Ordered = 16000
	shared  = MaxClauses / 2 // numeric ports are one clause, named ports another: see fit
	// placed is the number of rules that get a rank.
	placed = Ordered + (Ranks-Ordered)*shared
)

// place returns the rank of the rule with that many before it.
func place(before uint32) uint32 {
	if before < Ordered {
		return before
	}
	return min(Ordered+(before-Ordered)/shared, Ranks-1)
}

// tooLate reports whether a rule has no effect, because it cannot be ordered.
func (e *entry) tooLate(d policy.Direction, r policy.Rule) bool {
	return e.Tier != policy.NetworkPolicy && r.Verdict != policy.Deny && e.rank[d]+uint32(r.Index) >= Ordered
}

// beyondRanks reports whether a deny rule gets no rank.
func (e *entry) beyondRanks(d policy.Direction, r policy.Rule) bool {
	return e.Tier != policy.NetworkPolicy && r.Verdict == policy.Deny && e.rank[d]+uint32(r.Index) >= placed
}

// lateRules describes policies that apply to local pods and have rules that have no effect, or deny everything.
func (c *Compiler) lateRules() (out []string) {
	for _, e := range c.policies {
		if len(e.subjects) == 0 {
			continue
		}
		n, all := 0, 0
		for d, rules := range e.Rules {
			for _, r := range rules {
				if e.tooLate(policy.Direction(d), r) {
					n++
				}
				if e.beyondRanks(policy.Direction(d), r) {
					all++
				}
			}
		}
		if n > 0 {
			out = append(out, fmt.Sprintf("%s: %d rules that accept or pass have no effect, as more than %d rules of the same "+
				"tier and direction come before them: of such rules only those that deny are enforced", e.Ref, n, Ordered))
		}
		if all > 0 {
			out = append(out, fmt.Sprintf("%s: %d rules deny everything, as more than %d rules of the same tier and direction come "+
				"before them", e.Ref, all, placed))
		}
	}
	slices.Sort(out)
	return out
}
