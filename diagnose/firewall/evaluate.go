package firewall

import (
	"fmt"
	"slices"
)

// Drop is what drops a packet.
type Drop struct {
	// Family, Table and Chain are those of nftables.
	Family, Table, Chain string
	// Handle is the rule's; 0: the chain's policy drops the packet.
	Handle int
}

// String is the place in words.
func (d Drop) String() string {
	at := fmt.Sprintf("chain %s of table %s %s", d.Chain, d.Family, d.Table)
	if d.Handle == 0 {
		return "the policy of " + at
	}
	return fmt.Sprintf("the rule with handle %d in %s", d.Handle, at)
}

// outcome is what happens to a packet in a chain.
type outcome int

const (
	continues outcome = iota // to the next rule, or to the chain's caller
	returns
	accepted
	dropped
	undecided
)

// Dropped returns what certainly drops the packet; false: nothing does, or it is not certain.
func (r Ruleset) Dropped(p Packet) (Drop, bool) {
	hooks := []string{"prerouting", "input"}
	switch {
	case p.forwarded():
		hooks = []string{"prerouting", "forward"} // what postrouting does depends on earlier translations
	case p.Out != "":
		hooks = []string{"output", "postrouting"}
	}
	families := []string{"inet", p.family("ip", "ip6")}
	for _, hook := range hooks {
		for _, c := range r.bases {
			if c.Hook != hook || c.Type == "nat" || !slices.Contains(families, c.Family) {
				continue // nat chains see only tracked connections
			}
			// A packet that one base chain accepts continues with the next, so each is evaluated.
			if f, by := r.in(passing{p, hook}, chainID{c.Family, c.Table, c.Name}, 0); f == dropped {
				return by, true
			} else if (f == continues || f == returns) && c.Policy == "drop" {
				return Drop{c.Family, c.Table, c.Name, 0}, true
			}
		}
	}
	return Drop{}, false
}

// deepest is how deep chains may be nested: nft(8) allows 16.
const deepest = 20

// in follows the packet through a chain.
func (r Ruleset) in(p passing, id chainID, depth int) (outcome, Drop) {
	if depth > deepest {
		return undecided, Drop{}
	}
	for _, rule := range r.rules[id] {
		f, by, certain := r.under(p, rule, depth)
		switch {
		case f == continues:
		case certain:
			return f, by
		case f != dropped: // the rule may apply or not: what follows is not certain
			return undecided, Drop{}
		}
	}
	return continues, Drop{}
}

// under is what a rule does with the packet, and whether it certainly applies.
func (r Ruleset) under(p passing, of rule, depth int) (f outcome, by Drop, certain bool) {
	certain = true
	for _, e := range of.Expr {
		for kind, body := range e {
			switch kind {
			case "match":
				match, _ := body.(map[string]any)
				switch r.holds(p, of, match) {
				case no:
					return continues, Drop{}, true
				case unknown:
					certain = false
				}
			case "counter", "log", "comment", "notrack":
			default:
				if f, by, is := r.verdict(p, of, kind, body, depth); is {
					return f, by, certain
				}
				certain = false
			}
		}
	}
	return continues, Drop{}, true // a rule without a verdict
}

// verdict is what a statement decides; false: it is not a known verdict.
func (r Ruleset) verdict(p passing, of rule, kind string, body any, depth int) (outcome, Drop, bool) {
	here := Drop{of.Family, of.Table, of.Chain, of.Handle}
	switch kind {
	case "accept":
		return accepted, Drop{}, true
	case "drop":
		return dropped, here, true
	case "reject":
		fields, _ := body.(map[string]any)
		return p.rejected(fields["type"]), here, true
	case "continue":
		return continues, Drop{}, true
	case "return":
		return returns, Drop{}, true
	case "jump", "goto":
		target, _ := body.(map[string]any)
		name, _ := target["target"].(string)
		f, by := r.in(p, chainID{of.Family, of.Table, name}, depth+1)
		switch {
		case kind == "jump" && f == returns:
			f = continues
		case kind == "goto" && f == continues: // the caller continues, not this chain
			f = returns
		}
		return f, by, true
	case "vmap":
		return r.mapped(p, of, body, depth)
	}
	return continues, Drop{}, false
}

// mapped is a verdict map's verdict for the packet.
func (r Ruleset) mapped(p passing, of rule, body any, depth int) (outcome, Drop, bool) {
	fields, _ := body.(map[string]any)
	key, _ := fields["key"].(map[string]any)
	data, _ := fields["data"].(map[string]any)
	pairs, is := data["set"].([]any)
	have, has := p.value(key)
	if !is || has == unknown {
		return undecided, Drop{}, true
	}
	for _, one := range pairs {
		pair, _ := one.([]any)
		if has == no || len(pair) != 2 {
			continue
		}
		switch r.contains(of, pair[0], have) {
		case unknown:
			return undecided, Drop{}, true
		case yes:
			verdict, _ := pair[1].(map[string]any)
			for kind, body := range verdict {
				return r.verdict(p, of, kind, body, depth)
			}
		}
	}
	return continues, Drop{}, true
}

// rejected is what a rule does that rejects with this type: nft does not print a condition that the type implies.
func (p Packet) rejected(with any) outcome {
	only := map[any]bool{"icmp": p.Dst.Is4(), "icmpv6": p.Dst.Is6(), "tcp reset": p.Protocol == "tcp"}
	if is, implies := only[with]; implies && !is {
		return continues
	}
	return dropped
}
