package firewall

import (
	"net/netip"
	"slices"
	"strings"
)

// Packet is a packet into this host or out of it, which conntrack does not track, or one that it forwards, the first of
// a connection.
type Packet struct {
	// In is the interface through which it arrives, Out the one through which it leaves; only forwarded ones have both.
	In, Out  string
	Src, Dst netip.Addr
	// Protocol is "udp", "tcp" or "gre", Port the destination port of the first two.
	Protocol string
	Port     int
}

func (p Packet) forwarded() bool { return p.In != "" && p.Out != "" }

// passing is a packet at one of the kernel's hooks.
type passing struct {
	Packet
	hook string
}

// answer is whether a condition holds.
type answer int

const (
	no answer = iota
	yes
	unknown
)

func answerOf(is bool) answer {
	if is {
		return yes
	}
	return no
}

// holds says whether the packet meets a condition of the rule in.
func (r Ruleset) holds(p passing, in rule, match map[string]any) answer {
	left, _ := match["left"].(map[string]any)
	have, has := p.value(left)
	switch {
	case has == no:
		return no // a field that the packet lacks ends the rule, whatever the operator: nft(8), EXPRESSIONS
	case has == unknown:
		return unknown
	}
	is := r.contains(in, match["right"], have)
	switch match["op"] {
	case "==", "in":
		return is
	case "!=":
		return [...]answer{no: yes, yes: no, unknown: unknown}[is]
	}
	return unknown
}

// value is the packet's value of an expression, as in libnftables-json(5): a text, a number or an address. Some values
// have both a name and a number.
func (p passing) value(left map[string]any) (have []any, has answer) {
	for kind, of := range left {
		field, _ := of.(map[string]any)
		switch kind {
		case "meta":
			return p.meta(field["key"])
		case "payload":
			return p.payload(field["protocol"], field["field"])
		case "ct":
			return p.ct(field["key"])
		case "fib":
			return p.fib(field)
		}
	}
	return nil, unknown
}

func (p passing) ct(key any) ([]any, answer) {
	switch {
	case !p.forwarded() && key == "state":
		return []any{"untracked"}, yes
	case !p.forwarded():
		return nil, no // there is no conntrack entry
	case key == "state" && p.hook == "forward":
		return []any{"new"}, yes
	}
	return nil, unknown // conntrack may see the packet before this chain or after it
}

func (p passing) meta(key any) ([]any, answer) {
	switch key {
	case "iifname", "iif":
		return []any{p.In}, answerOf(p.In != "")
	case "oifname", "oif":
		return []any{p.Out}, answerOf(p.Out != "" && p.hook != "prerouting")
	case "l4proto":
		return p.protocol(), yes
	case "nfproto":
		return []any{p.family("ipv4", "ipv6")}, yes
	case "protocol":
		return []any{p.family("ip", "ip6")}, yes
	}
	return nil, unknown
}

func (p Packet) payload(protocol, field any) ([]any, answer) {
	if protocol == "ip" || protocol == "ip6" {
		return p.network(protocol, field)
	}
	switch {
	case protocol == "th" && p.Protocol == "gre":
		return nil, unknown // the kernel reads GRE's bytes as ports
	case (protocol == "th" || protocol == p.Protocol) && field == "dport":
		return []any{float64(p.Port)}, yes
	case slices.Contains([]any{"tcp", "udp", "icmp", "icmpv6", "sctp", "dccp", "esp", "ah"}, protocol) && protocol != p.Protocol:
		return nil, no
	}
	return nil, unknown
}

// network is a field of the IP header.
func (p Packet) network(protocol, field any) ([]any, answer) {
	if protocol != p.family("ip", "ip6") {
		return nil, no
	}
	switch field {
	case "saddr":
		return []any{p.Src}, yes
	case "daddr":
		return []any{p.Dst}, yes
	case "protocol", "nexthdr":
		return p.protocol(), yes
	}
	return nil, unknown
}

// fib is the type of an address, according to the routing table.
func (p passing) fib(field map[string]any) ([]any, answer) {
	flags, _ := field["flags"].([]any)
	if field["result"] != "type" || len(flags) != 1 {
		return nil, unknown
	}
	switch own, other := []any{"local"}, []any{"unicast"}; {
	case !p.forwarded() && (flags[0] == "daddr" && p.In != "" || flags[0] == "saddr" && p.Out != ""):
		return own, yes
	case flags[0] == "daddr", flags[0] == "saddr":
		return other, yes
	}
	return nil, unknown
}

func (p Packet) family(ipv4, ipv6 string) string {
	if p.Dst.Is6() {
		return ipv6
	}
	return ipv4
}

func (p Packet) protocol() []any {
	return []any{p.Protocol, map[string]float64{"tcp": 6, "udp": 17, "gre": 47}[p.Protocol]}
}

// contains says whether the right side of a condition contains one of the values.
func (r Ruleset) contains(in rule, right any, have []any) answer {
	switch right := right.(type) {
	case string:
		if name, named := strings.CutPrefix(right, "@"); named {
			values, known := r.values[setID{in.Family, in.Table, name}]
			if !known {
				return unknown
			}
			return r.contains(in, values, have)
		}
		return answerOf(slices.ContainsFunc(have, func(v any) bool { return isText(v, right) }))
	case float64:
		return answerOf(slices.Contains(have, any(right)))
	case []any: // one of these
		best := no
		for _, one := range right {
			switch r.contains(in, one, have) {
			case yes:
				return yes
			case unknown:
				best = unknown
			}
		}
		return best
	case map[string]any:
		return r.containsIn(in, right, have)
	}
	return unknown
}

func (r Ruleset) containsIn(in rule, right map[string]any, have []any) answer {
	for kind, of := range right {
		switch kind {
		case "set":
			return r.contains(in, of, have)
		case "elem": // an element with a comment, a counter or a timeout
			elem, _ := of.(map[string]any)
			return r.contains(in, elem["val"], have)
		case "prefix":
			return inPrefix(of, have)
		case "range":
			return inRange(of, have)
		}
	}
	return unknown
}

// isText reports whether the text names v: as the same text, with a wildcard at its end, or as an address.
func isText(v any, text string) bool {
	switch v := v.(type) {
	case string:
		begin, wildcard := strings.CutSuffix(text, "*")
		return v == text || wildcard && strings.HasPrefix(v, begin)
	case netip.Addr:
		a, err := netip.ParseAddr(text)
		return err == nil && a == v
	}
	return false
}

func inPrefix(of any, have []any) answer {
	field, _ := of.(map[string]any)
	text, _ := field["addr"].(string)
	bits, _ := field["len"].(float64)
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return unknown
	}
	return answerOf(slices.ContainsFunc(have, func(v any) bool {
		a, is := v.(netip.Addr)
		return is && netip.PrefixFrom(addr, int(bits)).Contains(a)
	}))
}

func inRange(of any, have []any) answer {
	ends, _ := of.([]any)
	if len(ends) != 2 {
		return unknown
	}
	low, is := ends[0].(float64)
	high, are := ends[1].(float64)
	if is && are {
		return answerOf(slices.ContainsFunc(have, func(v any) bool {
			n, is := v.(float64)
			return is && low <= n && n <= high
		}))
	}
	return addrsInRange(ends, have)
}

func addrsInRange(ends, have []any) answer {
	first, _ := ends[0].(string)
	last, _ := ends[1].(string)
	low, err := netip.ParseAddr(first)
	high, err2 := netip.ParseAddr(last)
	if err != nil || err2 != nil {
		return unknown
	}
	return answerOf(slices.ContainsFunc(have, func(v any) bool {
		a, is := v.(netip.Addr)
		return is && low.Compare(a) <= 0 && a.Compare(high) <= 0
	}))
}
