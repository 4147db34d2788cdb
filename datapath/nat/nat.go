package nat

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Our chains.
const (
	Postrouting = "FAIRLEAD-POSTROUTING" // of table nat
	Forward     = "FAIRLEAD-FORWARD"     // of table filter
)

// Desired is what the rules depend on.
type Desired struct {
	// Gateway is the name of the node's own port on the bridge.
	Gateway string
	// PodCIDRs are the node's own; a family without one gets no rules.
	PodCIDRs []netip.Prefix
	// Masquerade gives pods' packets to the outside the node's address.
	Masquerade bool
	// Unmasked are destinations that see the pods' own addresses although their
	// packets leave by another interface than the gateway: the podCIDRs of
	// nodes that are reached without a tunnel. Each costs a rule that the first
	// packet of each connection to the outside meets, so give the fewest that
	// cover them.
	Unmasked []netip.Prefix
	// RandomFully has the kernel choose source ports at random: the order in
	// which it tries them otherwise lets two connections meet.
	RandomFully bool
	// Tunnel is the traffic between nodes that pods must not imitate.
	Tunnel Tunnel
}

// Tunnel says how to know the packets of the tunnel between nodes. The zero
// value is no packet.
type Tunnel struct {
	Protocol string // "udp", "tcp" or "gre"
	Port     int    // destination port of udp and tcp
}

// match is the part of a rule that takes t's packets.
func (t Tunnel) match() string {
	if t.Protocol == "gre" {
		return "-p 47" // the name is known only where /etc/protocols is
	}
	return fmt.Sprintf("-p %s -m %s --dport %d", t.Protocol, t.Protocol, t.Port)
}

// Apply makes the rules what d says, none for the zero value, and returns what it changed, in words,
// also when it fails half way.
func Apply(d Desired) (changes []string, err error) {
	if err := d.validate(); err != nil {
		return nil, fmt.Errorf("iptables: %w", err)
	}
	var errs []error
	for _, f := range families() { // what fails for one is no reason not to do the other
		for _, c := range d.chains(f) {
			did, err := f.apply(c)
			changes = append(changes, did...)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", f.program, err))
				break
			}
		}
	}
	return changes, errors.Join(errs...)
}

func (d Desired) validate() error {
	if len(d.PodCIDRs) == 0 {
		return nil
	}
	if d.Gateway == "" || strings.ContainsAny(d.Gateway, "\"' \t\n!") || strings.HasSuffix(d.Gateway, "+") {
		return fmt.Errorf("%q cannot be the name of the gateway: iptables takes + at its end for any ending", d.Gateway)
	}
	for _, p := range slices.Concat(d.PodCIDRs, d.Unmasked) {
		if !p.IsValid() || p.Addr().Is4In6() {
			return fmt.Errorf("podCIDR %s is not a prefix", p)
		}
	}
	return nil
}

// chain is one of our chains with the built-in chain that jumps to it.
type chain struct {
	table, base, name string
	// beforeStop has the jump stand before a rule of base that lets nothing
	// pass. Else, and without such a rule, it is appended: what administrators
	// have put there themselves comes first.
	beforeStop bool
	// rules are written as "iptables -S" prints them, less "-A NAME". None
	// means that neither chain nor jump shall be there.
	rules []string
}

// chains are ours for the family f.
func (d Desired) chains(f family) []chain {
	post := chain{table: "nat", base: "POSTROUTING", name: Postrouting}
	fwd := chain{table: "filter", base: "FORWARD", name: Forward, beforeStop: true}
	if own := f.of(d.PodCIDRs); len(own) > 0 {
		post.rules, fwd.rules = d.sourceRules(own, f.of(d.Unmasked)), d.forwardRules(own)
	}
	return []chain{post, fwd}
}

// of are the prefixes of the family, without host bits.
func (f family) of(prefixes []netip.Prefix) (out []netip.Prefix) {
	for _, p := range prefixes {
		if p.Addr().Is6() == f.is6 {
			out = append(out, p.Masked())
		}
	}
	return out
}

// sourceRules give packets from the node's own pods another source, where that
// must be.
func (d Desired) sourceRules(own, unmasked []netip.Prefix) []string {
	masquerade := " -j MASQUERADE"
	if d.RandomFully {
		masquerade += " --random-fully"
	}
	// What the host sends to its own gateway address stays on lo and keeps its
	// source.
	rules := []string{"-o lo -j RETURN"}
	for _, p := range own {
		// A pod's packet to a Service that kube-proxy has turned back to a pod
		// on br-int or behind the tunnel. With its own source the reply would
		// go straight to the pod, past the node that alone can undo the
		// translation.
		rules = append(rules, fmt.Sprintf("-s %s -o %s -m conntrack --ctstate DNAT%s", p, d.Gateway, masquerade))
	}
	if !d.Masquerade {
		return rules
	}
	if len(unmasked) > 0 {
		rules = append(rules, "-o "+d.Gateway+" -j RETURN") // saves all the others
	}
	for _, p := range unmasked {
		rules = append(rules, fmt.Sprintf("-d %s -j RETURN", p))
	}
	for _, p := range own {
		rules = append(rules, fmt.Sprintf("-s %s ! -o %s%s", p, d.Gateway, masquerade))
	}
	return rules
}

// forwardRules let packets of pods pass. Docker sets the policy of FORWARD to
// DROP, firewalls end it in REJECT.
func (d Desired) forwardRules(own []netip.Prefix) (rules []string) {
	if d.Tunnel != (Tunnel{}) {
		// With the node's address, which masquerading gives it, another node
		// would take it for this one's: the pod could say there what its own
		// node forbids.
		rules = append(rules, "-i "+d.Gateway+" "+d.Tunnel.match()+" -j DROP")
	}
	for _, p := range own {
		// What claims to come from a pod of this node and did not: from a host
		// on the underlay, where the kernel's rp_filter is off or loose, and
		// with IPv6, for which there is none.
		rules = append(rules, fmt.Sprintf("-s %s ! -i %s -o %s -j DROP", p, d.Gateway, d.Gateway))
	}
	return append(rules, "-i "+d.Gateway+" -j ACCEPT", "-o "+d.Gateway+" -j ACCEPT")
}
