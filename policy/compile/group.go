package compile

import (
	"encoding/binary"
	"slices"

	"github.com/fairlead-cni/fairlead/policy"
)

// group is the local pods to which the same ClusterNetworkPolicy rules apply in one direction. NetworkPolicies do not
// count, or every namespace would have its own groups, each with flows for each rule of the cluster's policies.
type group struct {
	number       uint32
	key          string
	conjunctions map[*conjunction]struct{}
	pods         int
	flows        []Match
}

// regroup finds the groups of pods whose rules have changed, and returns those whose flows may have changed. Groups
// without pods are returned too, for the last time.
func (s *side) regroup(c *Compiler) map[*group]struct{} {
	dirty := map[*group]struct{}{}
	for p := range s.dirty.pods {
		old := p.groups[s.direction]
		now := s.groupOf(c, p)
		p.groups[s.direction] = now
		if now != nil {
			now.pods++
			dirty[now] = struct{}{}
		}
		if old != nil {
			old.pods--
			dirty[old] = struct{}{}
		}
	}
	for g := range dirty {
		if g.pods == 0 {
			delete(s.groups, g.key)
		}
	}
	return dirty
}

// groupOf returns the group of p, nil for a pod without rules.
func (s *side) groupOf(c *Compiler, p *pod) *group {
	conjunctions := ofTier(p.conjunctions[s.direction], false)
	if c.local[p.PodKey] != p || !c.namespaces[p.Namespace].known || len(conjunctions) == 0 {
		return nil
	}
	numbers := make([]uint32, 0, len(conjunctions))
	for n := range conjunctions {
		numbers = append(numbers, n.number)
	}
	slices.Sort(numbers)
	key := make([]byte, 0, 4*len(numbers))
	for _, n := range numbers {
		key = binary.BigEndian.AppendUint32(key, n)
	}
	g := s.groups[string(key)]
	if g == nil {
		g = &group{key: string(key)}
		g.number = freeNumber(c.hash(g.key), func(i uint32) bool {
			for _, other := range s.groups {
				if other.number == i {
					return true
				}
			}
			return false
		})
		s.groups[g.key] = g
	}
	g.conjunctions = conjunctions // a rule with another rank has the same number
	return g
}

// groupFlows returns the flows of the rules that apply to g.
func (g *group) groupFlows() []Flow {
	if g.pods == 0 {
		return nil
	}
	return subjectFlows(Group, g.conjunctions, func(m Match) Match {
		m.Group = g.number
		return m
	})
}

// ofTier returns the rules of NetworkPolicies, or the others.
func ofTier(conjunctions map[*conjunction]struct{}, networkPolicy bool) map[*conjunction]struct{} {
	out := map[*conjunction]struct{}{}
	for n := range conjunctions {
		if n.tier == policy.NetworkPolicy == networkPolicy {
			out[n] = struct{}{}
		}
	}
	return out
}

// subjectFlows returns the flows of the rules that apply to a pod or group.
func subjectFlows(kind Kind, conjunctions map[*conjunction]struct{}, at func(Match) Match) []Flow {
	flows := clauseFlows(kind, conjunctions, at)
	whole := map[Match]*conjunction{}
	for n := range conjunctions {
		m := at(n.match(Whole))
		if n.dimensions() == 1 && (whole[m] == nil || n.number < whole[m].number) {
			whole[m] = n
		}
	}
	for m, n := range whole {
		flows = append(flows, Flow{Match: m, Verdict: n.rule.Verdict, By: n.number})
	}
	return flows
}
