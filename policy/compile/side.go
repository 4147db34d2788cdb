package compile

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/policy"
)

// side is one direction: its rules' peers, and its flows.
type side struct {
	direction policy.Direction
	sets      map[string]*set // by key
	lastSet   uint32
	// byNamespace caches the sets that may have pods of a namespace.
	byNamespace map[string][]*set
	nodes       map[*set]struct{}
	edges       edges
	classes     map[string]*class // by key
	numbers     map[uint32]*class
	// networks are the networks that have a flow.
	networks map[netip.Prefix]peer
	ports    map[Match]map[*conjunction]struct{}
	// groups are by key.
	groups map[string]*group
	flows  map[Match]Flow // except those of addrs
	dirty  dirty
}

// dirty is what must be recomputed.
type dirty struct {
	sets     map[*set]struct{}
	networks prefixes
	addrs    map[netip.Prefix]struct{}
	classes  map[*class]struct{}
	pods     map[*pod]struct{}
	ports    map[Match]struct{}
	rules    map[*conjunction]struct{}
	// changed are the addresses whose flow has changed or is gone since the last Changes; narrowed: one of them may be
	// denied what it was accepted for.
	changed  map[netip.Prefix]struct{}
	narrowed bool
}

func newSide(d policy.Direction) *side {
	return &side{
		direction:   d,
		sets:        map[string]*set{},
		byNamespace: map[string][]*set{},
		nodes:       map[*set]struct{}{},
		edges:       edges{at: map[netip.Prefix]map[uint32]edge{}},
		classes:     map[string]*class{},
		numbers:     map[uint32]*class{},
		networks:    map[netip.Prefix]peer{},
		ports:       map[Match]map[*conjunction]struct{}{},
		groups:      map[string]*group{},
		flows:       map[Match]Flow{},
		dirty: dirty{
			sets:    map[*set]struct{}{},
			addrs:   map[netip.Prefix]struct{}{},
			classes: map[*class]struct{}{},
			pods:    map[*pod]struct{}{},
			ports:   map[Match]struct{}{},
			rules:   map[*conjunction]struct{}{},
			changed: map[netip.Prefix]struct{}{},
		},
	}
}

// dirtyRule marks all flows that a conjunction is part of, except those of pods.
func (s *side) dirtyRule(n *conjunction) {
	s.dirty.rules[n] = struct{}{}
	for _, set := range n.sets {
		for class := range set.classes {
			s.dirty.classes[class] = struct{}{}
		}
	}
	for _, m := range n.portMatches() {
		s.dirty.ports[m] = struct{}{}
	}
}

// settle computes what has changed, up to the classes of addresses.
func (c *Compiler) settle() {
	c.rank()
	for e := range c.refresh {
		c.refreshEntry(e)
	}
	c.refresh = emptied(c.refresh)
	for _, s := range c.sides {
		s.index(c)
		for p := range s.dirty.addrs {
			s.classify(c, p)
		}
		s.dirty.addrs = emptied(s.dirty.addrs)
	}
}

// classify computes the class of an address or network.
func (s *side) classify(c *Compiler, p netip.Prefix) {
	own, around := s.setsAt(c, p)
	old := c.peer(s, p)
	before := around
	if old.flow {
		before = s.numbers[old.class].all()
	}
	s.dirty.narrowed = s.dirty.narrowed || narrows(before, own)
	now := peer{}
	if !slices.Equal(own, around) {
		now = peer{s.classOf(c, own), true, len(around) > 0 || slices.ContainsFunc(own, (*set).denies)}
	}
	if now == old {
		return
	}
	s.join(now.class, 1)
	s.join(old.class, -1)
	c.setPeer(s, p, now)
	s.dirty.changed[p] = struct{}{}
}

// classOf returns the class number of sets, 0 for none.
func (s *side) classOf(c *Compiler, sets []*set) uint32 {
	if len(sets) == 0 {
		return 0
	}
	key := make([]byte, 0, 4*len(sets))
	for _, set := range sets {
		key = binary.BigEndian.AppendUint32(key, set.number)
	}
	there := s.classes[string(key)]
	if there == nil {
		there = &class{key: string(key), sets: sets}
		s.classes[there.key] = there
		keys := make([]string, 0, len(sets))
		for _, set := range sets {
			keys = append(keys, set.key)
		}
		slices.Sort(keys)
		there.number = freeNumber(c.hash(strings.Join(keys, "\n")), func(i uint32) bool { return s.numbers[i] != nil })
		s.numbers[there.number] = there
	}
	return there.number
}

// all returns the sets of a class; nil for none.
func (c *class) all() []*set {
	if c == nil {
		return nil
	}
	return c.sets
}

// join adds n addresses to the class of that number.
func (s *side) join(number uint32, n int) {
	c := s.numbers[number]
	if c == nil {
		return
	}
	was := c.addrs > 0
	c.addrs += n
	if is := c.addrs > 0; is != was {
		s.dirty.classes[c] = struct{}{}
		for _, set := range c.sets {
			if is {
				set.classes[c] = struct{}{}
			} else {
				delete(set.classes, c)
			}
		}
	}
}

// Changes returns what has changed since the last call, or since New, in no order.
func (c *Compiler) Changes() Changes {
	c.settle()
	var out Changes
	for _, s := range c.sides {
		s.changes(c, &out)
	}
	return out
}

// changes brings s.flows up to date.
func (s *side) changes(c *Compiler, out *Changes) {
	next := map[Match]*Flow{}
	replace := func(old []Match, flows []Flow) []Match {
		for _, m := range old {
			if next[m] == nil {
				next[m] = nil
			}
		}
		old = old[:0]
		for _, f := range flows {
			next[f.Match] = &f
			old = append(old, f.Match)
		}
		return slices.Clip(old)
	}
	for class := range s.dirty.classes {
		class.flows = replace(class.flows, s.classFlows(class))
		if class.addrs == 0 {
			delete(s.classes, class.key)
			delete(s.numbers, class.number)
		}
	}
	for g := range s.regroup(c) {
		g.flows = replace(g.flows, g.groupFlows())
	}
	for p := range s.dirty.pods {
		p.flows[s.direction] = replace(p.flows[s.direction], c.podFlows(p, s.direction))
	}
	for m := range s.dirty.ports {
		replace([]Match{m}, clauseFlows(Port, s.ports[m], func(Match) Match { return m }))
	}
	for n := range s.dirty.rules {
		n.flows = replace(n.flows, c.ruleFlows(n))
	}
	s.store(c, next, out)
	out.Forbids = out.Forbids || s.dirty.narrowed
	s.dirty.narrowed = false
	out.Put = slices.Grow(out.Put, len(s.dirty.changed))
	for p := range s.dirty.changed {
		if at := c.peer(s, p); at.flow {
			out.Put = append(out.Put, s.addressFlow(p, at))
		} else {
			out.Delete = append(out.Delete, Match{Direction: s.direction, Kind: Address, Address: p})
		}
	}
	s.dirty.classes = emptied(s.dirty.classes)
	s.dirty.pods = emptied(s.dirty.pods)
	s.dirty.ports = emptied(s.dirty.ports)
	s.dirty.rules = emptied(s.dirty.rules)
	s.dirty.changed = emptied(s.dirty.changed)
}

// store keeps the flows of next, and reports those that differ.
func (s *side) store(c *Compiler, next map[Match]*Flow, out *Changes) {
	for m, f := range next {
		old, was := s.flows[m]
		switch {
		case f == nil && was:
			delete(s.flows, m)
			out.Delete = append(out.Delete, m)
		case f != nil && (!was || !f.equal(old)):
			s.flows[m] = *f
			out.Put = append(out.Put, *f)
		default:
			continue
		}
		out.Forbids = out.Forbids || s.forbids(c, m, old, was, f)
	}
}

// Flows returns all flows, after the last Changes, in no order.
func (c *Compiler) Flows() []Flow {
	var out []Flow
	for _, s := range c.sides {
		for _, f := range s.flows {
			out = append(out, f)
		}
		for p, at := range c.eachPeer(s) {
			out = append(out, s.addressFlow(p, at))
		}
	}
	return out
}

func (s *side) addressFlow(p netip.Prefix, at peer) Flow {
	return Flow{Match: Match{Direction: s.direction, Kind: Address, Address: p}, Set: at.class, Guards: at.guards}
}

// classFlows returns the flows of the rules that have a class among their peers.
func (s *side) classFlows(c *class) []Flow {
	if c.addrs == 0 {
		return nil
	}
	users := map[*conjunction]struct{}{}
	for _, set := range c.sets {
		for n := range set.users {
			users[n] = struct{}{}
		}
	}
	return clauseFlows(Class, users, func(m Match) Match {
		m.Class = c.number
		return m
	})
}

// podFlows returns the flows of one direction that match p itself.
func (c *Compiler) podFlows(p *pod, d policy.Direction) []Flow {
	if c.local[p.PodKey] != p {
		return nil
	}
	m := Match{Direction: d, Pod: p.PodKey}
	if !c.namespaces[p.Namespace].known {
		m.Kind, m.Tier = Closed, policy.Admin
		return []Flow{{Match: m, Verdict: policy.Deny}}
	}
	flows := subjectFlows(Pod, ofTier(p.conjunctions[d], true), func(m Match) Match {
		m.Pod = p.PodKey
		return m
	})
	if g := p.groups[d]; g != nil {
		m.Kind = Member
		flows = append(flows, Flow{Match: m, Set: g.number})
	}
	if len(isolating(p, d)) > 0 {
		m.Kind, m.Tier = Isolated, policy.NetworkPolicy
		flows = append(flows, Flow{Match: m, Verdict: policy.Deny})
	}
	return flows
}

// isolating returns the policies that isolate p.
func isolating(p *pod, d policy.Direction) []policy.Ref {
	var out []policy.Ref
	for e := range p.policies {
		if e.Isolates[d] {
			out = append(out, e.Ref)
		}
	}
	slices.SortFunc(out, func(a, b policy.Ref) int { return strings.Compare(a.String(), b.String()) })
	return out
}

// ruleFlows returns the flow with a conjunction's verdict.
func (c *Compiler) ruleFlows(n *conjunction) []Flow {
	if c.rules[n.number] != n || n.dimensions() == 1 {
		return nil
	}
	m := n.match(Rule)
	m.Rule = n.number
	return []Flow{{Match: m, Verdict: n.rule.Verdict, By: n.number}}
}

// clauseFlows returns the flows of one dimension's value, one for each rank. at completes the Match of such a flow.
func clauseFlows(kind Kind, conjunctions map[*conjunction]struct{}, at func(Match) Match) []Flow {
	clauses := map[Match][]Clause{}
	for n := range conjunctions {
		if n.dimensions() > 1 {
			m := at(n.match(kind))
			clauses[m] = append(clauses[m], n.clause(kind))
		}
	}
	var flows []Flow
	for m, list := range clauses {
		slices.SortFunc(list, compareClauses)
		fit := min(len(list), MaxClauses)
		flows = append(flows, Flow{Match: m, Clauses: list[:fit], LeftOut: len(list) - fit})
	}
	return flows
}

// Problems describes flows that are too large: what is left out of them would accept, so it accepts nothing; and too
// many rules, or rules with too many parts.
func (c *Compiler) Problems() []string {
	out := append(c.lateRules(), c.widenedRules()...)
	for _, s := range c.sides {
		for m, f := range s.flows {
			if f.LeftOut > 0 {
				out = append(out, fmt.Sprintf("%d rules for one %s share one flow, and %d fit: the others accept nothing",
					MaxClauses+f.LeftOut, kindName(m.Kind), MaxClauses))
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func kindName(k Kind) string {
	return map[Kind]string{Pod: "pod", Group: "group of pods", Class: "group of peers", Port: "port"}[k]
}

// keptRoom is up to how many entries a map is emptied in place.
const keptRoom = 64

// emptied returns an empty map in place of one of any size: a map never shrinks.
func emptied[M ~map[K]V, K comparable, V any](m M) M {
	if len(m) > keptRoom {
		return M{}
	}
	clear(m)
	return m
}
