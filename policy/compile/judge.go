package compile

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/policy"
)

// Connection is a connection to judge for a pod of this node: as ingress with the source as its peer, as egress with
// the destination. Port is the destination's, and 0 for protocols without ports.
type Connection struct {
	Direction policy.Direction
	Pod       policy.PodKey
	Peer      netip.Addr
	Protocol  policy.Protocol
	Port      uint16
}

// Decision is what the rules say about a Connection, and why.
type Decision struct {
	// Verdict is Accept or Deny.
	Verdict policy.Verdict
	// Tier is the tier that decided; 0 if none did, so everything is accepted by default, or nothing if the pod is Closed.
	Tier policy.Tier
	// Rule is the rule that decided. Without one, a pod is denied what no rule of the policies that isolate it accepts.
	Rule *RuleRef
	// IsolatedBy are the NetworkPolicies that isolate the pod in this direction, sorted.
	IsolatedBy []policy.Ref
	// Misses are their rules that almost accept: either the peer or the port matches, but not both.
	Misses []Miss
	// Closed is true if the pod's Namespace is unknown, and with it the rules.
	Closed bool
}

// RuleRef names a rule of a policy: by its index in its direction, and by its name, if it has one.
type RuleRef struct {
	Policy    policy.Ref
	Tier      policy.Tier
	Direction policy.Direction
	Index     int
	Name      string
	Verdict   policy.Verdict
}

// Miss is a rule that would match a Connection except for its peer, or for its port.
type Miss struct {
	Rule RuleRef
	// Peer is true if the peer matches, but the port does not; otherwise the port matches.
	Peer bool
	// Ports are the rule's ports, named ports as numbers.
	Ports []policy.PortRange
}

// Judge returns what the rules of a local pod say about a connection; ok is false if there is no such pod, or it is not
// local. It ignores the rules of the other end, and that a node always reaches its own pods and a pod always reaches
// itself.
func (c *Compiler) Judge(about Connection) (d Decision, ok bool) {
	c.settle()
	p := c.local[about.Pod]
	if p == nil {
		return Decision{}, false
	}
	if !c.namespaces[p.Namespace].known {
		return Decision{Verdict: policy.Deny, Closed: true}, true
	}
	peer := netip.PrefixFrom(about.Peer, about.Peer.BitLen())
	sets, _ := c.sides[about.Direction].setsAt(c, peer)
	d.IsolatedBy = isolating(p, about.Direction)
	rules := inOrder(p.conjunctions[about.Direction])
	for _, tier := range []policy.Tier{policy.Admin, policy.NetworkPolicy, policy.Baseline} {
		for _, n := range rules {
			if n.tier != tier || !n.hasPeer(sets) || !n.hasPort(about) {
				continue
			}
			if n.rule.Verdict == policy.Pass {
				break
			}
			ref := n.ref()
			d.Verdict, d.Tier, d.Rule = n.rule.Verdict, tier, &ref
			return d, true
		}
		if tier == policy.NetworkPolicy && len(d.IsolatedBy) > 0 {
			d.Verdict, d.Tier, d.Misses = policy.Deny, tier, misses(rules, sets, about)
			return d, true
		}
	}
	d.Verdict = policy.Accept
	return d, true
}

// inOrder sorts rules in evaluation order.
func inOrder(conjunctions map[*conjunction]struct{}) []*conjunction {
	out := make([]*conjunction, 0, len(conjunctions))
	for n := range conjunctions {
		out = append(out, n)
	}
	slices.SortFunc(out, func(a, b *conjunction) int {
		return cmp.Or(cmp.Compare(a.tier, b.tier), cmp.Compare(a.rank, b.rank),
			cmp.Compare(a.entry.Name, b.entry.Name), cmp.Compare(a.rule.Index, b.rule.Index), cmp.Compare(a.key, b.key))
	})
	return out
}

func (n *conjunction) hasPeer(sets []*set) bool {
	return n.anyPeer || slices.ContainsFunc(n.sets, func(s *set) bool { return slices.Contains(sets, s) })
}

func (n *conjunction) hasPort(about Connection) bool {
	return n.anyPort || slices.ContainsFunc(n.ports, func(r policy.PortRange) bool {
		return r.Protocol == about.Protocol && r.First <= about.Port && about.Port <= r.Last
	})
}

// misses returns the rules of NetworkPolicies that have the peer or the port of a connection.
func misses(rules []*conjunction, sets []*set, about Connection) []Miss {
	var out []Miss
	for _, n := range rules {
		if peer, port := n.hasPeer(sets), n.hasPort(about); n.tier == policy.NetworkPolicy && (peer || port) {
			out = append(out, Miss{n.ref(), peer, n.ports})
		}
	}
	return out
}

func (n *conjunction) ref() RuleRef {
	return RuleRef{n.entry.Ref, n.tier, n.direction, n.rule.Index, n.rule.Name, n.rule.Verdict}
}

// InForce is what applies to a pod in one direction: tiers and rules in evaluation order.
type InForce struct {
	Direction  policy.Direction
	IsolatedBy []policy.Ref
	Rules      []RuleInForce
}

// RuleInForce is a rule, or its part for one number of a named port.
type RuleInForce struct {
	RuleRef
	// Peers are descriptions; none: any peer. Ports: none means any.
	Peers []string
	Ports []policy.PortRange
}

// InForce returns what applies to a local pod, by direction; ok is false if there is no such pod, or it is not local.
func (c *Compiler) InForce(key policy.PodKey) (out [2]InForce, ok bool) {
	c.settle()
	p := c.local[key]
	if p == nil {
		return out, false
	}
	for d := range out {
		out[d].Direction = policy.Direction(d)
		out[d].IsolatedBy = isolating(p, out[d].Direction)
		for _, n := range inOrder(p.conjunctions[d]) {
			r := RuleInForce{RuleRef: n.ref(), Ports: n.ports}
			for _, s := range n.sets {
				r.Peers = append(r.Peers, s.text())
			}
			out[d].Rules = append(out[d].Rules, r)
		}
	}
	return out, true
}

// text describes the peers of a set.
func (s *set) text() string {
	if s.networks == nil {
		return s.key
	}
	texts := make([]string, 0, len(s.networks))
	for _, n := range s.networks {
		texts = append(texts, n.String())
	}
	out := "networks " + strings.Join(texts, ", ")
	if s.pods != nil {
		out += ", of which pods with port " + s.port.String()
	}
	return out
}

// Rule returns the rule with a number in flows; ok is false if there is none.
func (c *Compiler) Rule(number uint32) (r RuleRef, ok bool) {
	n := c.rules[number]
	if n == nil {
		return RuleRef{}, false
	}
	return n.ref(), true
}
