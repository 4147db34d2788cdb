package compile

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/policy"
)

// What does not fit must not open anything. Parts of an accept rule may be missing. A deny rule is widened: it denies
// what it specifies, and more. So is a pass rule, which then denies: without it a later rule could accept what should
// be left to the next tier, and if it passed more, a later deny rule would be skipped.

// maxParts returns how many parts a rule can have so that all rules of its rank fit into one flow.
func (e *entry) maxParts(d policy.Direction, r policy.Rule) int {
	if e.rank[d]+uint32(r.Index) < Ordered {
		return MaxClauses
	}
	return MaxClauses / shared
}

// fit returns the parts of a rule, or widened ones if it has too many.
func (c *Compiler) fit(e *entry, d policy.Direction, r policy.Rule) []part {
	if e.beyondRanks(d, r) {
		r = policy.Rule{Index: r.Index, Name: r.Name, Verdict: policy.Deny, AnyPeer: true, AnyPort: true}
	}
	parts := c.divide(e, d, r)
	if e.Tier == policy.NetworkPolicy || r.Verdict == policy.Accept || len(parts) <= e.maxParts(d, r) {
		return parts
	}
	return c.widen(e, d, r)
}

// widen returns the parts of a deny or pass rule that has too many: its numeric ports, and, instead of named ports, all
// ports of the pods that have one.
func (c *Compiler) widen(e *entry, d policy.Direction, r policy.Rule) []part {
	names := make([]string, 0, len(r.NamedPorts))
	for _, n := range r.NamedPorts {
		names = append(names, n.String())
	}
	widened := "denies"
	if r.Verdict == policy.Pass {
		widened = "passes nothing, and denies"
	}
	widened += " all ports of pods that have port " + strings.Join(names, ", or ")
	if most := e.maxParts(d, r); most == MaxClauses {
		widened += fmt.Sprintf(", as it has more than %d numbers", most)
	} else {
		widened += fmt.Sprintf(", as more than %d rules come before it", Ordered)
	}
	r.Verdict = policy.Deny
	byNumber := r
	byNumber.NamedPorts = nil
	parts := c.divide(e, d, byNumber)
	for i := range parts {
		parts[i].widened = widened
	}
	all := part{rule: r, sets: setsOf(r), subjects: e.subjects, widened: widened}
	if d == policy.Ingress {
		all.subjects = map[*pod]struct{}{}
	} else {
		all.sets = nil
	}
	for _, named := range r.NamedPorts {
		for _, p := range []policy.Protocol{policy.TCP, policy.UDP, policy.SCTP} {
			to := policy.PortRange{Protocol: p, First: 0, Last: 65535}
			if (named.Protocol == 0 || named.Protocol == p) && !slices.Contains(all.ports, to) {
				all.ports = append(all.ports, to)
			}
		}
		if d == policy.Egress {
			all.sets = append(all.sets, peersWithPort(r, policy.PodPort{NamedPort: named})...)
			continue
		}
		for p := range e.subjects {
			if p.hasPort(named) {
				all.subjects[p] = struct{}{}
			}
		}
	}
	all.sets = sorted(all.sets)
	return append(parts, all)
}

func (p *pod) hasPort(named policy.NamedPort) bool {
	return slices.ContainsFunc(p.Ports, func(port policy.PodPort) bool { return port.Has(named) })
}

// widenedRules describes rules that deny more than they specify, because they do not fit.
func (c *Compiler) widenedRules() (out []string) {
	for _, n := range c.rules {
		if n.widened != "" {
			out = append(out, n.ref().String()+" "+n.widened)
		}
	}
	return out
}
