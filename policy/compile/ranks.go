package compile

import (
	"fmt"
	"slices"

	"github.com/fairlead-cni/fairlead/policy"
)

// Ranks is how many of them rules can have, and Ordered how many rules of a tier and direction have one of their own.
// Of those that come after them only what denies is enforced: then their order does not matter, and they share ranks,
// not more to one than a flow can have clauses. A rule that would accept or pass comes to nothing, so what it would let
// past a later one that denies is denied. What would have no place even so denies everything to its pods.
const (
	Ranks   = 16250
	Ordered = 16000
	shared  = MaxClauses / 2 // ports by number are one clause, and those by name another: see fit
	// placed are the rules that have a place.
	placed = Ordered + (Ranks-Ordered)*shared
)

// place returns the rank of the rule that has so many before it.
func place(before uint32) uint32 {
	if before < Ordered {
		return before
	}
	return min(Ordered+(before-Ordered)/shared, Ranks-1)
}

// tooLate reports whether a rule comes to nothing, as it cannot be put in order.
func (e *entry) tooLate(d policy.Direction, r policy.Rule) bool {
	return e.Tier != policy.NetworkPolicy && r.Verdict != policy.Deny && e.rank[d]+uint32(r.Index) >= Ordered
}

// beyondRanks reports whether a rule that denies has no place.
func (e *entry) beyondRanks(d policy.Direction, r policy.Rule) bool {
	return e.Tier != policy.NetworkPolicy && r.Verdict == policy.Deny && e.rank[d]+uint32(r.Index) >= placed
}

// lateRules are sentences about policies that apply to local pods and have rules that come to nothing, or deny all.
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
			out = append(out, fmt.Sprintf("%s: %d rules that accept or pass come to nothing, as more than %d rules of the same "+
				"tier and direction come before them: of those only what denies is enforced", e.Ref, n, Ordered))
		}
		if all > 0 {
			out = append(out, fmt.Sprintf("%s: %d rules deny everything, as more than %d rules of the same tier and direction come "+
				"before them", e.Ref, all, placed))
		}
	}
	slices.Sort(out)
	return out
}
