package nat

import (
	"errors"
	"fmt"
	"net/netip"
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
	for _, p := range d.PodCIDRs {
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
	for _, p := range d.PodCIDRs {
		if p.Addr().Is6() == f.is6 {
			post.rules = append(post.rules, d.sourceRules(p.Masked())...)
		}
	}
	if len(post.rules) > 0 {
		// What the host sends to its own gateway address stays on lo and
		// keeps its source.
		post.rules = append([]string{"-o lo -j RETURN"}, post.rules...)
		// Docker sets the policy of FORWARD to DROP, firewalls end it in
		// REJECT.
		fwd.rules = []string{"-i " + d.Gateway + " -j ACCEPT", "-o " + d.Gateway + " -j ACCEPT"}
		if d.Tunnel != (Tunnel{}) {
			// With the node's address, which masquerading gives it, another
			// node would take it for this one's: the pod could say there what
			// its own node forbids.
			fwd.rules = append([]string{"-i " + d.Gateway + " " + d.Tunnel.match() + " -j DROP"}, fwd.rules...)
		}
	}
	return []chain{post, fwd}
}

// sourceRules give packets from the node's own pods another source.
func (d Desired) sourceRules(podCIDR netip.Prefix) []string {
	masquerade := " -j MASQUERADE"
	if d.RandomFully {
		masquerade += " --random-fully"
	}
	var rules []string
	if d.Masquerade {
		rules = append(rules, fmt.Sprintf("-s %s ! -o %s%s", podCIDR, d.Gateway, masquerade))
	}
	// A pod's packet to a Service that kube-proxy has turned back to a pod.
	// With its own source the reply would go straight to the pod, past the
	// node that alone can undo the translation.
	return append(rules, fmt.Sprintf("-s %s -o %s -m conntrack --ctstate DNAT%s", podCIDR, d.Gateway, masquerade))
}
