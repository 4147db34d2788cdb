package policies

import (
	"net/netip"

	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/openflow/policing"
	"github.com/fairlead-cni/fairlead/policy"
	"github.com/fairlead-cni/fairlead/policy/compile"
)

// Priorities in the tables of tiers; policing.Twice uses the next lower ones, too. So each of compile.Ranks has four.
const (
	prioClosed   = 65535
	prioFirst    = 65000
	prioIsolated = 1
	prioAddress  = 2 // and twice the length of the prefix
	prioMember   = 2
)

// direction converts d for the tables.
func direction(d policy.Direction) policing.Direction {
	if d == policy.Egress {
		return policing.Egress
	}
	return policing.Ingress
}

// flowsOf returns the switch's flows for a compiler's flow, unless it is that of an address (ofPeer); pod is the number
// of its pod.
func flowsOf(f compile.Flow, pod uint32) []openflow.Flow {
	d := direction(f.Direction)
	out := openflow.Flow{Kind: openflow.KindPolicy, Table: d.Tier(uint8(f.Tier)), Priority: priority(f.Match)}
	switch f.Kind {
	case compile.Member:
		out.Table, out.Priority, out.Match.Judged = d.Group(), prioMember, pod
		out.Actions = []openflow.Action{openflow.SetGroup(f.Set), openflow.Goto(d.Group() + 1)}
		return policing.Twice(out)
	case compile.Port:
		out.Actions = conjunctions(f.Clauses)
		return ofTier(f.Tier, ports(f.Match, out)...)
	}
	out.Match.Judged, out.Match.Group, out.Match.Class, out.Match.ConjID = pod, f.Group, f.Class, f.Match.Rule
	if len(f.Clauses) > 0 {
		out.Actions = conjunctions(f.Clauses)
	} else {
		out.Kind, out.Actions = openflow.KindVerdict, verdict(f.Verdict, d, out.Table)
	}
	return ofTier(f.Tier, out)
}

// ofPeer returns the flow that gives an address its class.
func ofPeer(direct policy.Direction, address netip.Prefix, class uint32) openflow.Flow {
	d := direction(direct)
	out := openflow.Flow{Kind: openflow.KindPolicy, Table: d.Peer(), Priority: prioAddress + 2*uint16(address.Bits()),
		Actions: []openflow.Action{openflow.SetClass(class), openflow.Goto(d.Group())}}
	out.Match.EtherType = openflow.IPv6
	if address.Addr().Is4() {
		out.Match.EtherType = openflow.IPv4
	}
	switch {
	case address.Bits() == 0: // the switch lists a match on no bits as no match, which would differ from what was sent
	case direct == policy.Egress:
		out.Match.Dst = address
	default:
		out.Match.Src = address
	}
	return out
}

// ofTier returns the flows of a rule for its tier. Those of NetworkPolicies only accept.
func ofTier(t policy.Tier, flows ...openflow.Flow) []openflow.Flow {
	if t == policy.NetworkPolicy {
		return flows
	}
	return policing.Twice(flows...)
}

func priority(m compile.Match) uint16 {
	p := uint16(prioFirst - 4*m.Rank)
	switch m.Kind {
	case compile.Whole:
		return p + 2
	case compile.Isolated:
		return prioIsolated
	case compile.Closed:
		return prioClosed
	}
	return p
}

// ports are the flows of a port, one for each family.
func ports(m compile.Match, f openflow.Flow) []openflow.Flow {
	f.Match.Protocol = 1 + uint16(m.Protocol)
	f.Match.DstPort = openflow.Bits{Value: m.Port, Mask: m.Mask}
	v6 := f
	f.Match.EtherType, v6.Match.EtherType = openflow.IPv4, openflow.IPv6
	return []openflow.Flow{f, v6}
}

func conjunctions(clauses []compile.Clause) []openflow.Action {
	out := make([]openflow.Action, 0, len(clauses))
	for _, c := range clauses {
		out = append(out, openflow.Conjunction{ID: c.Rule, Number: c.Number, Of: c.Of})
	}
	return out
}

// verdict returns the actions of a verdict in a tier's table; none drops.
func verdict(v policy.Verdict, d policing.Direction, table uint8) []openflow.Action {
	switch v {
	case policy.Accept:
		return []openflow.Action{openflow.Goto(d.Accept())}
	case policy.Pass:
		return []openflow.Action{openflow.Goto(table + 1)}
	}
	return nil
}

// closed are the flows of a pod with unknown labels.
func closed(key policy.PodKey) []compile.Flow {
	var out []compile.Flow
	for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
		m := compile.Match{Direction: d, Kind: compile.Closed, Tier: policy.Admin, Pod: key}
		out = append(out, compile.Flow{Match: m, Verdict: policy.Deny})
	}
	return out
}
