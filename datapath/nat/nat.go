package nat

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/api"
)

// Fairlead's chains. Where a name is in two tables, the one in mangle holds the rules that drop.
const (
	Postrouting = "FAIRLEAD-POSTROUTING" // of tables nat and mangle
	Forward     = "FAIRLEAD-FORWARD"     // of tables filter and mangle
	Input       = "FAIRLEAD-INPUT"       // of table filter
	Output      = "FAIRLEAD-OUTPUT"      // of tables filter and raw
	Prerouting  = "FAIRLEAD-PREROUTING"  // of table raw
)

// Desired is what the rules depend on.
type Desired struct {
	// Gateway is the gateway's name: the node's own port on the bridge.
	Gateway string
	// PodCIDRs are the node's own, Pools the ranges of bridged pods on any node; a family without either gets no rules.
	PodCIDRs, Pools []netip.Prefix
	// NodeAddrs are the node's own addresses, the first of each family the one that other nodes use. Only Pools need them.
	NodeAddrs []netip.Addr
	// Masquerade SNATs pods' packets to the outside to the node's address.
	Masquerade bool
	// NotMasqueraded are destinations that see the pods' own addresses although their packets leave through another
	// interface than the gateway: the podCIDRs of nodes reached without a tunnel. Each costs a rule that the first packet
	// of every connection to the outside traverses, so pass the fewest prefixes that cover them.
	NotMasqueraded []netip.Prefix
	// RandomFully has the kernel choose source ports at random: in the order in which it tries them otherwise, two
	// connections can collide.
	RandomFully bool
	// Refused are destinations rejected for pods: the ranges of Services, which are translated before. A packet that still
	// has a ClusterIP as destination when the host forwards it is for no Service, or for one without endpoints.
	Refused []netip.Prefix
	// Tunnel is the traffic between nodes that pods must not forge.
	Tunnel Tunnel
	// TunnelEnd is where the kernel sends and receives that traffic; the zero value if it does not, as with the userspace
	// datapath, whose tunnel packets the host's netfilter never sees.
	TunnelEnd TunnelEnd
}

// TunnelEnd is this node's end of the tunnel.
type TunnelEnd struct {
	Interface string
	Addr      netip.Addr
}

// Tunnel says how to recognise tunnel packets between nodes. The zero value matches none.
type Tunnel struct {
	Protocol string // "udp", "tcp" or "gre"
	Port     int    // destination port of udp and tcp
}

// TunnelOf returns the tunnel for a type in api.AgentConfig. The ports are the IANA-assigned ones, which are Open
// vSwitch's defaults, unless another is given.
func TunnelOf(kind string, port int) Tunnel {
	t := map[string]Tunnel{
		api.TunnelGeneve: {Protocol: "udp", Port: 6081}, api.TunnelVXLAN: {Protocol: "udp", Port: 4789},
		api.TunnelGRE: {Protocol: "gre"},
	}[kind]
	if port != 0 && t.Port != 0 {
		t.Port = port
	}
	return t
}

// match returns the part of a rule that matches t's packets.
func (t Tunnel) match() string {
	if t.Protocol == "gre" {
		return "-p 47" // the name needs /etc/protocols
	}
	return fmt.Sprintf("-p %s -m %s --dport %d", t.Protocol, t.Protocol, t.Port)
}

// Apply reconciles the rules with d, none for the zero value, and returns a description of what it changed, also when
// it fails halfway. Nothing is written once ctx has ended.
func (t *Tables) Apply(ctx context.Context, d Desired) (changes []string, err error) {
	if err := d.validate(); err != nil {
		return nil, fmt.Errorf("iptables: %w", err)
	}
	was, known := t.generation(ctx)
	if known && t.clean.matches(was, d) {
		return nil, nil
	}
	t.clean = cleanRead{}
	first := t.applied == nil // the agent may not have been running when rules were lost
	lost := !first && reflect.DeepEqual(*t.applied, d)
	var errs []error
	for _, f := range families() { // one failing does not stop the other
		did, err := t.applyFamily(ctx, f, d, func(did []string) bool { return first || lost && len(did) > 0 })
		changes = append(changes, did...)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", f.program, err))
		}
	}
	if !first || len(errs) == 0 { // a failed start is repeated
		t.applied = &d
	}
	if known && len(changes)+len(errs) == 0 {
		t.clean = cleanRead{true, was, d}
	}
	return changes, errors.Join(errs...)
}

// applyFamily applies the rules of a family, and deletes the conntrack entries that began without the rules of table
// nat if began, which gets the changes to these, says so.
func (t *Tables) applyFamily(ctx context.Context, f family, d Desired, began func([]string) bool) ([]string, error) {
	var changes []string
	for _, c := range d.chains(f) {
		did, err := t.apply(ctx, f, c)
		changes = append(changes, did...)
		if err != nil {
			return changes, err
		}
		if c.table == "nat" && began(did) {
			if change := d.flushUntranslated(f); change != "" {
				changes = append(changes, change)
			}
		}
	}
	return changes, nil
}

func (d Desired) validate() error {
	if len(d.PodCIDRs)+len(d.Pools) == 0 {
		return nil
	}
	if d.Gateway == "" || strings.ContainsAny(d.Gateway, "\"' \t\n!") || strings.HasSuffix(d.Gateway, "+") {
		return fmt.Errorf("%q cannot be the name of the gateway: in iptables a trailing + is a wildcard", d.Gateway)
	}
	if name := d.TunnelEnd.Interface; strings.ContainsAny(name, "\"' \t\n!") || strings.HasSuffix(name, "+") {
		return fmt.Errorf("%q cannot be the name of the transport interface: in iptables a trailing + is a wildcard", name)
	}
	for _, p := range slices.Concat(d.PodCIDRs, d.Pools, d.NotMasqueraded, d.Refused) {
		if !p.IsValid() || p.Addr().Is4In6() {
			return fmt.Errorf("%s is not a prefix", p)
		}
	}
	return nil
}

// place is where our jump is in the built-in chain.
type place int

const (
	last          place = iota // after the administrator's own rules
	beforeDropAll              // last, but before a rule that stops everything
	first                      // before what others accept
)

// chain is one of Fairlead's chains, with the built-in chain that jumps to it.
type chain struct {
	table, base, name string
	place             place
	// rules are written as "iptables -S" prints them, less "-A NAME". None means that neither chain nor jump is wanted.
	rules []string
}

// chains returns Fairlead's chains for the family f.
func (d Desired) chains(f family) []chain {
	fence := chain{table: "mangle", base: "FORWARD", name: Forward, place: first}
	source := chain{table: "mangle", base: "POSTROUTING", name: Postrouting, place: first}
	post := chain{table: "nat", base: "POSTROUTING", name: Postrouting}
	fwd := chain{table: "filter", base: "FORWARD", name: Forward, place: beforeDropAll}
	if own, pools := f.of(d.PodCIDRs), f.of(d.Pools); len(own)+len(pools) > 0 {
		fence.rules, source.rules = d.forwardDrops(own, pools), d.sourceDrops(f, own, pools)
		// What the host sends to its own gateway address stays on lo and keeps its
		// source.
		post.rules = append([]string{"-o lo -j RETURN"}, d.serviceRules(own)...)
		post.rules = append(post.rules, d.bridgedRules(f, own, pools)...)
		if d.Masquerade {
			post.rules = append(post.rules, d.outsideRules(own, f.of(d.NotMasqueraded))...)
		}
		// Docker sets the policy of FORWARD to DROP, firewalls end it in REJECT.
		fwd.rules = append(d.refusals(f), "-i "+d.Gateway+" -j ACCEPT", "-o "+d.Gateway+" -j ACCEPT")
	}
	return append([]chain{fence, source, post, fwd}, d.tunnelChains(f)...) // drop rules first, before anything is accepted
}

// tunnelChains accept tunnel packets in the host's filters, at the node's own end only, and save the kernel a conntrack
// entry for each pod connection: a full table drops all new connections on the node. They come first, since the rules
// that follow are an administrator's, not meant for the tunnel, or a firewall's defaults. br-int checks the packets'
// source: it accepts only peers' addresses.
//
// Untracked packets are neither ESTABLISHED nor NEW to an administrator's rules, so they are accepted on output as
// well.
func (d Desired) tunnelChains(f family) []chain {
	in := chain{table: "filter", base: "INPUT", name: Input, place: first}
	out := chain{table: "filter", base: "OUTPUT", name: Output, place: first}
	pre := chain{table: "raw", base: "PREROUTING", name: Prerouting, place: first}
	raw := chain{table: "raw", base: "OUTPUT", name: Output, place: first}
	if end := d.TunnelEnd; d.Tunnel != (Tunnel{}) && end.Interface != "" && end.Addr.Is6() == f.is6 {
		addr := netip.PrefixFrom(end.Addr, end.Addr.BitLen())
		arrives := fmt.Sprintf("-d %s -i %s %s", addr, end.Interface, d.Tunnel.match())
		leaves := fmt.Sprintf("-s %s -o %s %s", addr, end.Interface, d.Tunnel.match())
		in.rules, out.rules = []string{arrives + " -j ACCEPT"}, []string{leaves + " -j ACCEPT"}
		pre.rules, raw.rules = []string{arrives + " -j CT --notrack"}, []string{leaves + " -j CT --notrack"}
	}
	return []chain{in, out, pre, raw} // accepted before they are untracked
}

// masquerade returns the rule target that gives a packet the address of its output interface.
func (d Desired) masquerade() string {
	if d.RandomFully {
		return " -j MASQUERADE --random-fully"
	}
	return " -j MASQUERADE"
}

// of returns the prefixes of the family, without host bits.
func (f family) of(prefixes []netip.Prefix) (out []netip.Prefix) {
	for _, p := range prefixes {
		if p.Addr().Is6() == f.is6 {
			out = append(out, p.Masked())
		}
	}
	return out
}

// serviceRules masquerade a pod's packet to a Service that kube-proxy has translated to a pod, on br-int or behind the
// tunnel: with the pod's own source the reply would go straight to the pod, bypassing the only node that can reverse
// the translation.
func (d Desired) serviceRules(own []netip.Prefix) (rules []string) {
	for _, p := range own {
		rules = append(rules, fmt.Sprintf("-s %s -o %s -m conntrack --ctstate DNAT%s", p, d.Gateway, d.masquerade()))
	}
	return rules
}

// refusals reject as kube-proxy does where it runs: an application need not wait for its timeout.
func (d Desired) refusals(f family) (rules []string) {
	answer := "icmp-port-unreachable"
	if f.is6 {
		answer = "icmp6-port-unreachable"
	}
	for _, p := range f.of(d.Refused) {
		rules = append(rules, fmt.Sprintf("-d %s -i %s -j REJECT --reject-with %s", p, d.Gateway, answer))
	}
	return rules
}

// bridgedRules SNAT all that the host forwards from bridged pods, above all packets to Services, and what it sends to
// them with a source that is not one of its own addresses. A bridged pod sends to the host only replies that are
// addressed to the host; all others it sends to the underlay, and the other end replies to a bridged pod there as well.
//
// Through the gateway the new source is the gateway's address, which the tunnel's far end accepts, or the node's if the
// gateway has none.
//
// This excludes traffic between bridged pods and this node's routed ones without a Service: each replies on the path on
// which the request came.
func (d Desired) bridgedRules(f family, own, pools []netip.Prefix) (rules []string) {
	if len(pools) == 0 {
		return nil
	}
	for _, p := range own {
		rules = append(rules, fmt.Sprintf("-s %s -o %s -j RETURN", p, d.Gateway), // serviceRules come before
			fmt.Sprintf("-d %s -o %s -m conntrack ! --ctstate DNAT -j RETURN", p, d.Gateway))
	}
	node := d.nodeAddrs(f)
	target := d.masquerade()
	if len(own) == 0 && len(node) > 0 {
		target = fmt.Sprintf(" -j SNAT --to-source %s", node[0])
		if d.RandomFully {
			target += " --random-fully"
		}
	}
	for _, p := range pools {
		rules = append(rules, fmt.Sprintf("-s %s -o %s%s", p, d.Gateway, target))
	}
	for _, a := range node {
		rules = append(rules, fmt.Sprintf("-s %s -o %s -j RETURN", netip.PrefixFrom(a, a.BitLen()), d.Gateway))
	}
	for _, p := range pools {
		rules = append(rules, fmt.Sprintf("-d %s -o %s%s", p, d.Gateway, target))
	}
	for _, p := range pools {
		rules = append(rules, fmt.Sprintf("-s %s ! -o %s%s", p, d.Gateway, d.masquerade()))
	}
	return rules
}

// outsideRules masquerade what the node's routed pods send to the outside.
func (d Desired) outsideRules(own, unmasked []netip.Prefix) (rules []string) {
	if len(unmasked) > 0 {
		rules = append(rules, "-o "+d.Gateway+" -j RETURN") // skips all the others
	}
	for _, p := range unmasked {
		rules = append(rules, fmt.Sprintf("-d %s -j RETURN", p))
	}
	for _, p := range own {
		rules = append(rules, fmt.Sprintf("-s %s ! -o %s%s", p, d.Gateway, d.masquerade()))
	}
	return rules
}

func (d Desired) nodeAddrs(f family) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(d.NodeAddrs), func(a netip.Addr) bool { return a.Is6() != f.is6 })
}

// forwardDrops drop what no pod and no host on the underlay may send through the host. In table mangle they come before
// every rule of table filter, where others accept whole podCIDRs, and after a Service's address has been translated to
// its backend's.
func (d Desired) forwardDrops(own, pools []netip.Prefix) (rules []string) {
	if d.Tunnel != (Tunnel{}) {
		// Masqueraded to the node's address, another node would take it for this node's tunnel packet: the pod could send
		// there what its own node forbids.
		rules = append(rules, "-i "+d.Gateway+" "+d.Tunnel.match()+" -j DROP")
	}
	// Packets with this node's own address as source, from which its pods are reachable whatever policies say, but not
	// sent by it: IPv6 has no martian source check.
	rules = append(rules, fmt.Sprintf("! -i %s -o %s -m addrtype --src-type LOCAL -j DROP", d.Gateway, d.Gateway))
	for _, p := range own {
		// Packets with a source of this node's pods that did not come from them: from a host on the underlay, if the kernel's
		// rp_filter is off or loose, and with IPv6, which has none.
		rules = append(rules, fmt.Sprintf("-s %s ! -i %s -o %s -j DROP", p, d.Gateway, d.Gateway))
	}
	for _, p := range pools {
		// The host does not route between bridged pods and anything but pods. They have a router on the underlay, and what it
		// isolates, above all VLANs, would be connected here: the host forwards into each VLAN, from any sender and any
		// interface.
		rules = append(rules, fmt.Sprintf("-d %s ! -i %s -o %s -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP",
			p, d.Gateway, d.Gateway))
	}
	return rules
}

// sourceDrops drop forged tunnel packets that have a pod's address until table nat gives them the node's, with which
// another node would take them for this node's. The pods may be on another node that uses this one as a router; and
// what IPVS has sent to a Service's backend was never forwarded: to the kernel it is the host's own.
func (d Desired) sourceDrops(f family, own, pools []netip.Prefix) (rules []string) {
	if d.Tunnel == (Tunnel{}) {
		return nil
	}
	for _, a := range d.nodeAddrs(f) { // a pool may be the nodes' subnet
		rules = append(rules, fmt.Sprintf("-s %s -j RETURN", netip.PrefixFrom(a, a.BitLen())))
	}
	for _, p := range slices.Concat(own, pools) {
		rules = append(rules, fmt.Sprintf("-s %s %s -j DROP", p, d.Tunnel.match()))
	}
	return rules
}
