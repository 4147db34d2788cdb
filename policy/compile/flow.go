package compile

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/policy"
)

// Kind is the purpose of a flow. It determines which fields of Match are set.
type Kind uint8

const (
	// Address gives packets of peers their class. Longer prefixes win.
	Address Kind = 1
	// Member gives packets the group of the pod for which they are judged, which Admin and Baseline match.
	Member Kind = 2
	// Pod in NetworkPolicy, Group in the other tiers, Class and Port are the dimensions of conjunctions.
	Pod   Kind = 3
	Group Kind = 4
	Class Kind = 5
	Port  Kind = 6
	// Rule is the verdict for packets that a conjunction matches.
	Rule Kind = 7
	// Whole is the immediate verdict for pods or groups and rules without other dimensions. It takes precedence over
	// conjunctions of its rank.
	Whole Kind = 8
	// Isolated denies what no rule has accepted, for pods that a NetworkPolicy isolates. It is last in its tier.
	Isolated Kind = 9
	// Closed denies everything for a pod whose rules are unknown. It is first of all.
	Closed Kind = 10
)

// Match identifies a flow. A connection that no flow of a tier matches continues to the next tier, and is accepted
// after the last.
type Match struct {
	Direction policy.Direction
	Kind      Kind
	// Tier is 0 for Address and Member.
	Tier policy.Tier
	// Rank orders the flows of a tier, lowest first. All of NetworkPolicy have 0.
	Rank uint32
	// Address is the peer's: the source for ingress, the destination for egress.
	Address netip.Prefix
	// Pod is the pod of this node for which the connection is judged.
	Pod policy.PodKey
	// Group of the pod and Class of the peer, never 0.
	Group, Class uint32
	// Protocol and destination port, with the bits of Mask.
	Protocol   policy.Protocol
	Port, Mask uint16
	// Rule is the conjunction's number, never 0.
	Rule uint32
}

// Flow says what to do with packets of a Match.
type Flow struct {
	Match
	// Set is the class of an Address, and the group of a Member.
	Set uint32
	// Guards is true for an Address whose flow, if missing, might let packets get further: there is a network around it,
	// or a rule that does not accept has it.
	Guards bool
	// Clauses are the conjunctions that a Pod, Group, Class or Port is part of, sorted.
	Clauses []Clause
	// LeftOut is how many clauses exceed what a flow can have.
	LeftOut int
	// Verdict is the verdict of Rule, Whole, Isolated and Closed, and By the rule's number; 0 for the latter two.
	Verdict policy.Verdict
	By      uint32
}

// Clause is one dimension of a conjunction, 1 to Of.
type Clause struct {
	Rule       uint32
	Number, Of uint8
}

// Changes is what has changed since the last Changes.
type Changes struct {
	Put    []Flow
	Delete []Match
	// Forbids is false if no connection accepted before is denied now. It may be true unnecessarily.
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

// masked returns the matches for a port range: a mask matches 2^n ports that begin at a multiple of 2^n.
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
