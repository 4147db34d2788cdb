package nat

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/coreos/go-iptables/iptables"
)

// Our chains.
const (
	Postrouting = "FAIRLEAD-POSTROUTING" // table nat
	Forward     = "FAIRLEAD-FORWARD"     // table filter
)

// lockSeconds is how long iptables waits for its lock, which kube-proxy and
// others hold for as long as they write.
const lockSeconds = 5

// Desired are the rules of one node.
type Desired struct {
	// Gateway is the interface between host and pods.
	Gateway string
	// PodCIDRs are the node's own, at most one of each family. Rules of a
	// family that is not there are removed.
	PodCIDRs []netip.Prefix
	// Masquerade gives packets of pods that leave by another interface than
	// Gateway the address of that interface.
	Masquerade bool
	// RandomFully picks the source ports of masqueraded packets at random.
	RandomFully bool
}

// chain is one of our chains with its rules, as "iptables -S" prints them
// behind "-A CHAIN".
type chain struct {
	table, parent, name string
	rules               []string
}

// chains are our chains of one family. Without rules a chain shall not be.
func (d Desired) chains(ipv4 bool) []chain {
	post := chain{table: "nat", parent: "POSTROUTING", name: Postrouting}
	forward := chain{table: "filter", parent: "FORWARD", name: Forward}
	for _, p := range d.PodCIDRs {
		if p.Addr().Is4() != ipv4 {
			continue
		}
		forward.rules = []string{"-i " + d.Gateway + " -j ACCEPT", "-o " + d.Gateway + " -j ACCEPT"}
		if d.Masquerade {
			rule := fmt.Sprintf("-s %s ! -o %s -j MASQUERADE", p, d.Gateway)
			if d.RandomFully {
				rule += " --random-fully"
			}
			post.rules = append(post.rules, rule)
		}
	}
	return []chain{post, forward}
}

// Apply makes the rules what d says and returns what it changed, in words,
// also when it fails half way.
func Apply(d Desired) (changes []string, err error) {
	var errs []error
	for _, proto := range []iptables.Protocol{iptables.ProtocolIPv4, iptables.ProtocolIPv6} {
		done, err := applyFamily(proto, d.chains(proto == iptables.ProtocolIPv4))
		changes = append(changes, done...)
		errs = append(errs, err)
	}
	return changes, errors.Join(errs...)
}

// Remove takes away all that Apply made.
func Remove() (changes []string, err error) { return Apply(Desired{}) }

func applyFamily(proto iptables.Protocol, chains []chain) (changes []string, err error) {
	wanted := slices.ContainsFunc(chains, func(c chain) bool { return len(c.rules) > 0 })
	ipt, err := iptables.New(iptables.IPFamily(proto), iptables.Timeout(lockSeconds))
	if err != nil {
		if !wanted {
			return nil, nil // without the program there are no rules of ours
		}
		return nil, fmt.Errorf("running %s: %w (Debian has it in the package iptables)", program(proto), err)
	}
	for _, c := range chains {
		w := writer{ipt: ipt, chain: c, program: program(proto)}
		if err := w.apply(); err != nil {
			if !wanted {
				continue // a kernel without the family's tables has no rules of ours
			}
			return append(changes, w.changes...), fmt.Errorf("%s, table %s, chain %s: %w", w.program, c.table, c.name, err)
		}
		changes = append(changes, w.changes...)
	}
	return changes, nil
}

func program(proto iptables.Protocol) string {
	if proto == iptables.ProtocolIPv6 {
		return "ip6tables"
	}
	return "iptables"
}

// writer brings one chain to what it should be.
type writer struct {
	ipt     *iptables.IPTables
	chain   chain
	program string
	changes []string
}

func (w *writer) did(format string, args ...any) {
	w.changes = append(w.changes, w.program+" -t "+w.chain.table+": "+fmt.Sprintf(format, args...))
}

func (w *writer) apply() error {
	exists, err := w.ipt.ChainExists(w.chain.table, w.chain.name)
	if err != nil {
		return err
	}
	if len(w.chain.rules) == 0 {
		if !exists {
			return nil
		}
		return w.remove()
	}
	if !exists {
		if err := w.ipt.NewChain(w.chain.table, w.chain.name); err != nil {
			return err
		}
		w.did("added chain %s", w.chain.name)
	}
	if err := w.applyRules(w.chain.name, w.chain.rules); err != nil {
		return err
	}
	return w.applyJump(1)
}

// applyRules adds what is missing before it removes what is too much, so that
// no packet meets a chain without the rule it needs. The rules do not depend
// on each other's order.
func (w *writer) applyRules(name string, want []string) error {
	have, err := w.list(name)
	if err != nil {
		return err
	}
	for _, rule := range want {
		if i := slices.Index(have, rule); i >= 0 {
			have = slices.Delete(have, i, i+1)
			continue
		}
		if err := w.ipt.Append(w.chain.table, name, strings.Fields(rule)...); err != nil {
			return err
		}
		w.did("added to %s: %s", name, rule)
	}
	return w.deleteRules(name, have)
}

// deleteRules deletes by number, from the last, since a rule that somebody
// else wrote need not parse as it prints.
func (w *writer) deleteRules(name string, rules []string) error {
	for _, rule := range rules {
		have, err := w.list(name)
		if err != nil {
			return err
		}
		for i := len(have) - 1; i >= 0; i-- {
			if have[i] == rule {
				if err := w.ipt.DeleteById(w.chain.table, name, i+1); err != nil {
					return err
				}
				w.did("removed from %s: %s", name, rule)
				break
			}
		}
	}
	return nil
}

// applyJump makes the parent jump to our chain as often as times says: once,
// or not at all.
func (w *writer) applyJump(times int) error {
	jump := "-j " + w.chain.name
	have, err := w.list(w.chain.parent)
	if err != nil {
		return err
	}
	have = slices.DeleteFunc(have, func(rule string) bool { return rule != jump })
	if len(have) < times {
		if err := w.ipt.Append(w.chain.table, w.chain.parent, "-j", w.chain.name); err != nil {
			return err
		}
		w.did("added to %s: %s", w.chain.parent, jump)
		return nil
	}
	return w.deleteRules(w.chain.parent, have[times:])
}

func (w *writer) remove() error {
	if err := w.applyJump(0); err != nil {
		return err
	}
	if err := w.ipt.ClearAndDeleteChain(w.chain.table, w.chain.name); err != nil {
		return err
	}
	w.did("removed chain %s", w.chain.name)
	return nil
}

// list returns the rules of a chain as "iptables -S" prints them behind
// "-A CHAIN".
func (w *writer) list(name string) ([]string, error) {
	lines, err := w.ipt.List(w.chain.table, name)
	if err != nil {
		return nil, err
	}
	var rules []string
	for _, line := range lines {
		if rule, ok := strings.CutPrefix(line, "-A "+name+" "); ok {
			rules = append(rules, rule)
		}
	}
	return rules, nil
}
