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

// Our chains. Of those of two tables, the one of mangle has what drops.
const (
	Postrouting = "FAIRLEAD-POSTROUTING" // of tables nat and mangle
	Forward     = "FAIRLEAD-FORWARD"     // of tables filter and mangle
	Input       = "FAIRLEAD-INPUT"       // of table filter
	Output      = "FAIRLEAD-OUTPUT"      // of tables filter and raw
	Prerouting  = "FAIRLEAD-PREROUTING"  // of table raw
)

// Desired is what the rules depend on.
type Desired struct {
	// Gateway is the name of the node's own port on the bridge.
	Gateway string
	// PodCIDRs are the node's own, Pools the ranges of bridged pods, on whatever
	// node; a family without either gets no rules.
	PodCIDRs, Pools []netip.Prefix
	// NodeAddrs are the node's own addresses, the first of each family the one
	// that other nodes know. Only Pools need them.
	NodeAddrs []netip.Addr
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
	// Refused are destinations that pods are refused: the ranges of Services that are translated before. What still has
	// a ClusterIP as its destination when the host forwards it is of no Service, or of one without endpoints.
	Refused []netip.Prefix
	// Tunnel is the traffic between nodes that pods must not imitate.
	Tunnel Tunnel
	// TunnelEnd is where the kernel sends and receives that traffic; the zero value where it does not, as with the
	// userspace datapath, whose tunnel the host's netfilter never sees.
	TunnelEnd TunnelEnd
}

// TunnelEnd is this node's end of the tunnel.
type TunnelEnd struct {
	Interface string
	Addr      netip.Addr
}

// Tunnel says how to know the packets of the tunnel between nodes. The zero
// value is no packet.
type Tunnel struct {
	Protocol string // "udp", "tcp" or "gre"
	Port     int    // destination port of udp and tcp
}

// TunnelOf is the tunnel of a type of api.AgentConfig. The ports are those that IANA assigned, and Open vSwitch's
// default, unless another is given.
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

// match is the part of a rule that takes t's packets.
func (t Tunnel) match() string {
	if t.Protocol == "gre" {
		return "-p 47" // the name is known only where /etc/protocols is
	}
	return fmt.Sprintf("-p %s -m %s --dport %d", t.Protocol, t.Protocol, t.Port)
}

// Apply makes the rules what d says, none for the zero value, and returns what it changed, in words,
// also when it fails half way. Nothing is written once ctx has ended.
func (t *Tables) Apply(ctx context.Context, d Desired) (changes []string, err error) {
	if err := d.validate(); err != nil {
		return nil, fmt.Errorf("iptables: %w", err)
	}
	was, known := t.generation(ctx)
	if known && t.found.is(was, d) {
		return nil, nil
	}
	t.found = look{}
	first := t.applied == nil // the agent may have been killed, or away, when rules were lost
	lost := !first && reflect.DeepEqual(*t.applied, d)
	var errs []error
	for _, f := range families() { // what fails for one is no reason not to do the other
		did, err := t.applyFamily(ctx, f, d, func(did []string) bool { return first || lost && len(did) > 0 })
		changes = append(changes, did...)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", f.program, err))
		}
	}
	if !first || len(errs) == 0 { // a start that has failed is yet to come
		t.applied = &d
	}
	if known && len(changes)+len(errs) == 0 {
		t.found = look{true, was, d}
	}
	return changes, errors.Join(errs...)
}

// applyFamily makes the rules of a family, and has conntrack forget what began without those of table nat if began,
// which is given what was changed of these, says so.
func (t *Tables) applyFamily(ctx context.Context, f family, d Desired, began func([]string) bool) ([]string, error) {
	var changes []string
	for _, c := range d.chains(f) {
		did, err := t.apply(ctx, f, c)
		changes = append(changes, did...)
		if err != nil {
			return changes, err
		}
		if c.table == "nat" && began(did) {
			if change := d.forget(f); change != "" {
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
	for _, p := range slices.Concat(d.PodCIDRs, d.Pools, d.Unmasked, d.Refused) {
		if !p.IsValid() || p.Addr().Is4In6() {
			return fmt.Errorf("%s is not a prefix", p)
		}
	}
	return nil
}

// place is where in the built-in chain our jump stands.
type place int

const (
	last       place = iota // what administrators have put there themselves comes first
	beforeStop              // last, but before a rule that lets nothing pass
	first                   // before what others accept
)

// chain is one of our chains with the built-in chain that jumps to it.
type chain struct {
	table, base, name string
	place             place
	// rules are written as "iptables -S" prints them, less "-A NAME". None
	// means that neither chain nor jump shall be there.
	rules []string
}

// chains are ours for the family f.
func (d Desired) chains(f family) []chain {
	fence := chain{table: "mangle", base: "FORWARD", name: Forward, place: first}
	source := chain{table: "mangle", base: "POSTROUTING", name: Postrouting, place: first}
	post := chain{table: "nat", base: "POSTROUTING", name: Postrouting}
	fwd := chain{table: "filter", base: "FORWARD", name: Forward, place: beforeStop}
	if own, pools := f.of(d.PodCIDRs), f.of(d.Pools); len(own)+len(pools) > 0 {
		fence.rules, source.rules = d.forwardDrops(own, pools), d.sourceDrops(f, own, pools)
		// What the host sends to its own gateway address stays on lo and keeps its
		// source.
		post.rules = append([]string{"-o lo -j RETURN"}, d.serviceRules(own)...)
		post.rules = append(post.rules, d.bridgedRules(f, own, pools)...)
		if d.Masquerade {
			post.rules = append(post.rules, d.outsideRules(own, f.of(d.Unmasked))...)
		}
		// Docker sets the policy of FORWARD to DROP, firewalls end it in REJECT.
		fwd.rules = append(d.refusals(f), "-i "+d.Gateway+" -j ACCEPT", "-o "+d.Gateway+" -j ACCEPT")
	}
	return append([]chain{fence, source, post, fwd}, d.tunnelChains(f)...) // nothing passes before what drops is there
}

// tunnelChains let the tunnel's packets through the host's filters, at the node's own end alone, and spare the kernel
// an entry of conntrack for each flow of the pods: a full table drops what is new, of everybody. They come first, since
// what follows belongs to an administrator who did not mean the tunnel, or to a firewall's default. Whose packets they
// are is looked at in br-int, which accepts no address but the peers'.
//
// What is not tracked is neither ESTABLISHED nor NEW to an administrator's rules, so it is let out as well.
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
	return []chain{in, out, pre, raw} // conntrack first lets go of what is let through without it
}

// masquerade is the target of rules that give a packet the address of the
// interface that it leaves by.
func (d Desired) masquerade() string {
	if d.RandomFully {
		return " -j MASQUERADE --random-fully"
	}
	return " -j MASQUERADE"
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

// serviceRules give a pod's packet to a Service that kube-proxy has turned back
// to a pod, on br-int or behind the tunnel, another source: with its own the
// reply would go straight to the pod, past the node that alone can undo the
// translation.
func (d Desired) serviceRules(own []netip.Prefix) (rules []string) {
	for _, p := range own {
		rules = append(rules, fmt.Sprintf("-s %s -o %s -m conntrack --ctstate DNAT%s", p, d.Gateway, d.masquerade()))
	}
	return rules
}

// refusals answer as kube-proxy does, where it is there: an application need not wait for its timeout.
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

// bridgedRules give another source to all that the host forwards from bridged
// pods, Services' packets above all, and to what it sends to them with a source
// that is none of its own addresses. A bridged pod sends its answers to the host
// only where they go to the host; all others it sends to the underlay, and the
// other end answers a bridged pod there as well.
//
// Through the gateway that source is the gateway's address, which the tunnel's
// far end believes, or the node's where the gateway has none.
//
// Not so between bridged pods and this node's routed ones, where no Service has
// a part: each sends its answers the way the questions came.
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

// outsideRules give the node's address to what its routed pods send to the
// outside.
func (d Desired) outsideRules(own, unmasked []netip.Prefix) (rules []string) {
	if len(unmasked) > 0 {
		rules = append(rules, "-o "+d.Gateway+" -j RETURN") // saves all the others
	}
	for _, p := range unmasked {
		rules = append(rules, fmt.Sprintf("-d %s -j RETURN", p))
	}
	for _, p := range own {
		rules = append(rules, fmt.Sprintf("-s %s ! -o %s%s", p, d.Gateway, d.masquerade()))
	}
	return rules
}

// nodeAddrs are the node's addresses of the family.
func (d Desired) nodeAddrs(f family) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(d.NodeAddrs), func(a netip.Addr) bool { return a.Is6() != f.is6 })
}

// forwardDrops are what no pod and nobody on the underlay may send through the host.
// In table mangle they come before every rule of table filter, where others accept
// whole podCIDRs, and after a Service's address has become its backend's.
func (d Desired) forwardDrops(own, pools []netip.Prefix) (rules []string) {
	if d.Tunnel != (Tunnel{}) {
		// With the node's address, which masquerading gives it, another node
		// would take it for this one's: the pod could say there what its own
		// node forbids.
		rules = append(rules, "-i "+d.Gateway+" "+d.Tunnel.match()+" -j DROP")
	}
	// What claims to come from this node itself, whose processes reach its pods
	// whatever policies say, and was not sent by it: IPv6 has no martian source.
	rules = append(rules, fmt.Sprintf("! -i %s -o %s -m addrtype --src-type LOCAL -j DROP", d.Gateway, d.Gateway))
	for _, p := range own {
		// What claims to come from a pod of this node and did not: from a host
		// on the underlay, where the kernel's rp_filter is off or loose, and
		// with IPv6, for which there is none.
		rules = append(rules, fmt.Sprintf("-s %s ! -i %s -o %s -j DROP", p, d.Gateway, d.Gateway))
	}
	for _, p := range pools {
		// The host is no router between bridged pods and anything but pods. They
		// have one on the underlay, and what it keeps apart, VLANs first of all,
		// would meet here: the host has a way into each VLAN, whoever sends it a
		// packet, by whatever interface.
		rules = append(rules, fmt.Sprintf("-d %s ! -i %s -o %s -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP",
			p, d.Gateway, d.Gateway))
	}
	return rules
}

// sourceDrops are the tunnel's packets that have a pod's address until table nat gives
// them the node's, with which another node would take them for this one's. The pods may
// be another node's, which use this one as a router; and what IPVS has sent to a
// Service's backend was never forwarded: it is the host's own to the kernel.
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
