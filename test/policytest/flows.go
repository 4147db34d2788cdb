package policytest

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/policy"
	"github.com/fairlead-cni/fairlead/policy/compile"
)

// Flows are flows as a switch has them, by what identifies them.
type Flows map[compile.Match]compile.Flow

// Apply makes the changes, each of which must fit.
func (f Flows) Apply(changes compile.Changes) error {
	for _, m := range changes.Delete {
		if _, there := f[m]; !there {
			return fmt.Errorf("the flow %+v is deleted, and there is none", m)
		}
		delete(f, m)
	}
	for _, flow := range changes.Put {
		f[flow.Match] = flow
	}
	return nil
}

// Judge does what Open vSwitch would do with a connection: the class of the peer, then tier by tier the flow of the
// lowest rank that takes it. Flows of one rank that disagree are an error, as it is undefined which of them wins.
func (f Flows) Judge(c compile.Connection) (policy.Verdict, error) {
	class := f.class(c.Direction, c.Peer)
	for _, tier := range []policy.Tier{policy.Admin, policy.NetworkPolicy, policy.Baseline} {
		at := compile.Match{Direction: c.Direction, Tier: tier, Pod: c.Pod}
		at.Kind = compile.Closed
		if closed, ok := f[at]; ok {
			return closed.Verdict, nil
		}
		v, err := f.tier(tier, c, class)
		if err != nil || v == policy.Accept || v == policy.Deny {
			return v, err
		}
		at.Kind = compile.Isolated
		if isolated, ok := f[at]; ok && v == 0 {
			return isolated.Verdict, nil
		}
	}
	return policy.Accept, nil
}

// class is that of the longest prefix.
func (f Flows) class(d policy.Direction, a netip.Addr) uint32 {
	for bits := a.BitLen(); bits >= 0; bits-- {
		m := compile.Match{Direction: d, Kind: compile.Address, Address: netip.PrefixFrom(a, bits).Masked()}
		if flow, ok := f[m]; ok {
			return flow.Set
		}
	}
	return 0
}

// tier returns the verdict of a tier's rules, 0 for none.
func (f Flows) tier(tier policy.Tier, c compile.Connection, class uint32) (policy.Verdict, error) {
	var ranks []uint32
	for m := range f {
		if m.Direction == c.Direction && m.Tier == tier && !slices.Contains(ranks, m.Rank) {
			ranks = append(ranks, m.Rank)
		}
	}
	slices.Sort(ranks)
	for _, rank := range ranks {
		if v, err := f.rank(rank, tier, c, class); v != 0 || err != nil {
			return v, err
		}
	}
	return 0, nil
}

func (f Flows) rank(rank uint32, tier policy.Tier, c compile.Connection, class uint32) (policy.Verdict, error) {
	group := f[compile.Match{Direction: c.Direction, Kind: compile.Member, Pod: c.Pod}].Set
	clauses := map[uint32]map[uint8]bool{}
	of := map[uint32]uint8{}
	var found policy.Verdict
	for m, flow := range f {
		if m.Direction != c.Direction || m.Tier != tier || m.Rank != rank {
			continue
		}
		hit := false
		switch m.Kind {
		case compile.Whole:
			if m.Pod == c.Pod || m.Pod == (policy.PodKey{}) && m.Group == group {
				return flow.Verdict, nil
			}
		case compile.Pod:
			hit = m.Pod == c.Pod
		case compile.Group:
			hit = m.Group == group
		case compile.Class:
			hit = m.Class == class
		case compile.Port:
			hit = m.Protocol == c.Protocol && c.Port&m.Mask == m.Port
		}
		for _, clause := range flow.Clauses {
			if !hit {
				break
			}
			n := of[clause.Rule]
			if n != 0 && n != clause.Of || clause.Of < 2 || clause.Number > clause.Of || clause.Number == 0 {
				return 0, fmt.Errorf("the conjunction %d has %d and %+v", clause.Rule, n, clause)
			}
			if clauses[clause.Rule] == nil {
				clauses[clause.Rule] = map[uint8]bool{}
			}
			of[clause.Rule], clauses[clause.Rule][clause.Number] = clause.Of, true
		}
	}
	for rule, have := range clauses {
		if len(have) != int(of[rule]) {
			continue
		}
		flow, ok := f[compile.Match{Direction: c.Direction, Kind: compile.Rule, Tier: tier, Rank: rank, Rule: rule}]
		if !ok {
			return 0, fmt.Errorf("the conjunction %d has no verdict flow", rule)
		}
		if found != 0 && found != flow.Verdict {
			return 0, fmt.Errorf("two flows of rank %d disagree", rank)
		}
		found = flow.Verdict
	}
	return found, nil
}
