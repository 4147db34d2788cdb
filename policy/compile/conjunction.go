package compile

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/policy"
)

// conjunction is a rule, or its part for one number of a named port.
type conjunction struct {
	number    uint32
	key       string
	entry     *entry
	rule      policy.Rule
	direction policy.Direction
	tier      policy.Tier
	rank      uint32
	// sets are its peers, anyPeer: they do not matter. Likewise for ports.
	sets     []*set
	anyPeer  bool
	ports    []policy.PortRange
	anyPort  bool
	subjects map[*pod]struct{}
	flows    []Match
	widened  string // see part
}

// part is a conjunction without a number yet.
type part struct {
	rule     policy.Rule
	sets     []set
	ports    []policy.PortRange
	subjects map[*pod]struct{}
	widened  string // what the rule does instead of what it specifies
}

// rank assigns ranks to the policies of Admin and Baseline.
func (c *Compiler) rank() {
	if !c.unranked {
		return
	}
	c.unranked = false
	var ordered []*entry
	for _, e := range c.policies {
		if e.Tier != policy.NetworkPolicy {
			ordered = append(ordered, e)
		}
	}
	slices.SortFunc(ordered, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(a.Tier, b.Tier), cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Name, b.Name))
	})
	next := map[policy.Tier]*[2]uint32{policy.Admin: {}, policy.Baseline: {}}
	for _, e := range ordered {
		ranks := next[e.Tier]
		if e.rank != *ranks {
			e.rank, e.moved = *ranks, true
			c.refresh[e] = struct{}{}
		}
		for d, rules := range e.Rules {
			for _, r := range rules {
				ranks[d] = max(ranks[d], e.rank[d]+uint32(r.Index)+1)
			}
		}
	}
}

// refreshEntry updates the conjunctions of e from its rules and subjects.
func (c *Compiler) refreshEntry(e *entry) {
	parts := map[string]part{}
	directions := map[string]policy.Direction{}
	if c.policies[e.Ref] == e && len(e.subjects) > 0 {
		for d, rules := range e.Rules {
			for _, r := range rules {
				if e.tooLate(policy.Direction(d), r) {
					continue
				}
				for _, p := range c.fit(e, policy.Direction(d), r) {
					key := p.key(e, policy.Direction(d))
					if twice, ok := parts[key]; ok {
						// Another identical rule, or another named port of the same number.
						p.rule, p.subjects = twice.rule, union(p.subjects, twice.subjects)
					}
					parts[key], directions[key] = p, policy.Direction(d)
				}
			}
		}
	}
	for key, old := range e.conjunctions {
		if _, stays := parts[key]; !stays || e.moved {
			c.remove(old)
			delete(e.conjunctions, key)
		}
	}
	e.moved = false
	for _, key := range slices.Sorted(maps.Keys(parts)) {
		p := parts[key]
		old := e.conjunctions[key]
		if old == nil {
			old = c.add(e, key, directions[key], p)
			e.conjunctions[key] = old
		}
		old.rule, old.widened = p.rule, p.widened // another index, or another name
		old.apply(p.subjects, c.sides[old.direction])
	}
}

// divide returns the parts of a rule.
func (c *Compiler) divide(e *entry, d policy.Direction, r policy.Rule) []part {
	var parts []part
	if r.AnyPort || len(r.Ports) > 0 {
		parts = append(parts, part{rule: r, sets: setsOf(r), ports: r.Ports, subjects: e.subjects})
	}
	for _, named := range r.NamedPorts {
		if r.AnyPort {
			break
		}
		if d == policy.Ingress {
			for port, pods := range withPort(e.subjects, named) {
				parts = append(parts, part{rule: r, sets: setsOf(r), ports: []policy.PortRange{single(port)}, subjects: pods})
			}
			continue
		}
		for _, port := range c.portsOf(named) {
			parts = append(parts, part{rule: r, sets: peersWithPort(r, port), ports: []policy.PortRange{single(port)},
				subjects: e.subjects})
		}
	}
	return slices.DeleteFunc(parts, func(p part) bool { return !r.AnyPeer && len(p.sets) == 0 })
}

func union(a, b map[*pod]struct{}) map[*pod]struct{} {
	both := maps.Clone(a)
	maps.Copy(both, b)
	return both
}

func single(p policy.PodPort) policy.PortRange {
	return policy.PortRange{Protocol: p.Protocol, First: p.Number, Last: p.Number}
}

// portsOf returns the ports of the cluster's pods that match a named port.
func (c *Compiler) portsOf(named policy.NamedPort) []policy.PodPort {
	var out []policy.PodPort
	for _, protocol := range []policy.Protocol{policy.TCP, policy.UDP, policy.SCTP} {
		if named.Protocol != 0 && named.Protocol != protocol {
			continue
		}
		name := policy.NamedPort{Protocol: protocol, Name: named.Name}
		for number := range c.numbers[name] {
			out = append(out, policy.PodPort{NamedPort: name, Number: number})
		}
	}
	return out
}

// withPort divides pods by the number of a named port; those without it are left out.
func withPort(pods map[*pod]struct{}, named policy.NamedPort) map[policy.PodPort]map[*pod]struct{} {
	out := map[policy.PodPort]map[*pod]struct{}{}
	for p := range pods {
		for _, port := range p.Ports {
			if !port.Has(named) {
				continue
			}
			if out[port] == nil {
				out[port] = map[*pod]struct{}{}
			}
			out[port][p] = struct{}{}
		}
	}
	return out
}

// key identifies a conjunction. Two identical rules of a NetworkPolicy are one.
func (p part) key(e *entry, d policy.Direction) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s", e.Ref, d, p.rule.Verdict)
	if e.Tier != policy.NetworkPolicy {
		fmt.Fprintf(&b, " %s %d", e.Tier, p.rule.Index)
	}
	for _, s := range p.sets {
		b.WriteString("\n" + s.key)
	}
	for _, port := range p.ports {
		b.WriteString("\n" + port.String())
	}
	return b.String()
}

// add creates a conjunction from a part, without subjects.
func (c *Compiler) add(e *entry, key string, d policy.Direction, p part) *conjunction {
	s := c.sides[d]
	n := &conjunction{key: key, entry: e, rule: p.rule, direction: d, tier: e.Tier,
		anyPeer: p.rule.AnyPeer && len(p.sets) == 0, ports: p.ports, anyPort: len(p.ports) == 0,
		subjects: map[*pod]struct{}{}}
	if e.Tier != policy.NetworkPolicy {
		n.rank = place(e.rank[d] + uint32(p.rule.Index))
	}
	n.number = freeNumber(c.hash(key), func(i uint32) bool { return c.rules[i] != nil })
	c.rules[n.number] = n
	for _, want := range p.sets {
		n.sets = append(n.sets, s.use(c, want, n))
	}
	for _, m := range n.portMatches() {
		if s.ports[m] == nil {
			s.ports[m] = map[*conjunction]struct{}{}
		}
		s.ports[m][n] = struct{}{}
	}
	s.dirtyRule(n)
	return n
}

func (c *Compiler) remove(n *conjunction) {
	s := c.sides[n.direction]
	n.apply(nil, s)
	s.dirtyRule(n)
	for _, set := range n.sets {
		s.leave(c, set, n)
	}
	for _, m := range n.portMatches() {
		if delete(s.ports[m], n); len(s.ports[m]) == 0 {
			delete(s.ports, m)
		}
	}
	delete(c.rules, n.number)
}

// apply sets the pods to which the conjunction applies.
func (n *conjunction) apply(subjects map[*pod]struct{}, s *side) {
	for p := range n.subjects {
		if _, stays := subjects[p]; !stays {
			delete(n.subjects, p)
			delete(p.conjunctions[n.direction], n)
			s.dirty.pods[p] = struct{}{}
		}
	}
	for p := range subjects {
		if _, there := n.subjects[p]; there {
			continue
		}
		n.subjects[p] = struct{}{}
		if p.conjunctions[n.direction] == nil {
			p.conjunctions[n.direction] = map[*conjunction]struct{}{}
		}
		p.conjunctions[n.direction][n] = struct{}{}
		s.dirty.pods[p] = struct{}{}
	}
}

// match returns the part of a Match that all flows of n share.
func (n *conjunction) match(kind Kind) Match {
	return Match{Direction: n.direction, Kind: kind, Tier: n.tier, Rank: n.rank}
}

// dimensions counts those of pod or group, class, and port that matter.
func (n *conjunction) dimensions() uint8 {
	d := uint8(1)
	if !n.anyPeer {
		d++
	}
	if !n.anyPort {
		d++
	}
	return d
}

// clause returns n's clause in flows of a dimension.
func (n *conjunction) clause(kind Kind) Clause {
	number := map[Kind]uint8{Pod: 1, Group: 1, Class: 2, Port: n.dimensions()}[kind]
	return Clause{n.number, number, n.dimensions()}
}

// portMatches returns the matches of the flows that n is part of by its ports.
func (n *conjunction) portMatches() []Match {
	var out []Match
	if n.dimensions() == 1 {
		return nil
	}
	for _, p := range n.ports {
		for _, m := range masked(p) {
			full := n.match(Port)
			full.Protocol, full.Port, full.Mask = m.Protocol, m.Port, m.Mask
			if !slices.Contains(out, full) {
				out = append(out, full)
			}
		}
	}
	return out
}

// hash is the same in every process.
func hash(text string) uint32 {
	sum := sha256.Sum256([]byte(text))
	return binary.BigEndian.Uint32(sum[:])
}

// freeNumber returns the first number from start on that is neither 0 nor taken.
func freeNumber(start uint32, taken func(uint32) bool) uint32 {
	for start == 0 || taken(start) {
		start++
	}
	return start
}
