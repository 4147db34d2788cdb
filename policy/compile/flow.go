package compile

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/policy"
)

// Kind is what a flow is for. It says which fields of Match are set.
type Kind uint8

const (
	// Address gives packets of peers their class. Longer prefixes win.
	Address Kind = 1
	// Member gives packets of the pod that they are judged for its group, which Admin and Baseline match.
	Member Kind = 2
	// Pod in NetworkPolicy, Group in the other tiers, Class and Port are the dimensions of conjunctions.
	Pod   Kind = 3
	Group Kind = 4
	Class Kind = 5
	Port  Kind = 6
	// Rule is for packets that a conjunction takes: its verdict.
	Rule Kind = 7
	// Whole is for pods or groups and rules without other dimensions: the verdict at once. It wins over conjunctions of
	// its rank.
	Whole Kind = 8
	// Isolated denies what no rule has accepted to pods that a NetworkPolicy isolates. It comes last in its tier.
	Isolated Kind = 9
	// Closed denies everything to a pod whose rules are unknown. It comes first of all.
	Closed Kind = 10
)

// Match identifies a flow. A connection that no flow of a tier takes goes on to the next tier, and is accepted at last.
type Match struct {
	Direction policy.Direction
	Kind      Kind
	// Tier is 0 for Address and Member.
	Tier policy.Tier
	// Rank orders the flows of a tier: the lower one is first. All of NetworkPolicy have 0.
	Rank uint32
	// Address is the peer's, source of ingress and destination of egress.
	Address netip.Prefix
	// Pod is the pod of this node that the connection is judged for.
	Pod policy.PodKey
	// Group of the pod and Class of the peer, never 0.
	Group, Class uint32
	// Protocol and destination port, as many bits as Mask has.
	Protocol   policy.Protocol
	Port, Mask uint16
	// Rule is the conjunction's number, never 0.
	Rule uint32
}

// Flow is what to do with the packets of a Match.
type Flow struct {
	Match
	// Set is the class of an Address, and the group of a Member.
	Set uint32
	// Guards is true for an Address without whose flow packets might get further than with it: there is a network around
	// it, or a rule that does not accept has it.
	Guards bool
	// Clauses are the conjunctions that a Pod, Group, Class or Port is part of, sorted.
	Clauses []Clause
	// LeftOut is how many more there are than a flow can have.
	LeftOut int
	// Verdict is that of Rule, Whole, Isolated and Closed, and By the rule's number; 0 for the latter two.
	Verdict policy.Verdict
	By      uint32
}

// Clause is one dimension of a conjunction, 1 to Of.
type Clause struct {
	Rule       uint32
	Number, Of uint8
}

// Changes is what differs since the last one.
type Changes struct {
	Put    []Flow
	Delete []Match
	// Forbids is false if no connection is denied now that was accepted before. It may be true without need.
	Forbids bool
}

// MaxClauses is how many conjunctions one flow can have: a flow-mod is at most 64 KiB long (OpenFlow 1.5, section 7.1),
// an action conjunction 16 bytes.
const MaxClauses = 4000

func (f Flow) equal(g Flow) bool {
	return f.Match == g.Match && f.Set == g.Set && f.Verdict == g.Verdict && f.By == g.By && f.LeftOut == g.LeftOut &&
		slices.Equal(f.Clauses, g.Clauses)
}

func compareClauses(a, b Clause) int { return cmp.Compare(a.Rule, b.Rule) }

// masked returns the matches that take the ports of a range: a mask takes 2^n ports that begin at a multiple of 2^n.
func masked(p policy.PortRange) []Match {
	var out []Match
	for first, last := uint32(p.First), uint32(p.Last); first <= last; {
		size := uint32(1)
		for first%(size*2) == 0 && first+size*2-1 <= last {
			size *= 2
		}
		out = append(out, Match{Kind: Port, Protocol: p.Protocol, Port: uint16(first), Mask: uint16(65536 - size)})
		first += size
	}
	return out
}
