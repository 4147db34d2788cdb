package compile

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/policy"
)

// set is peers that rules name identically: pods that a selector selects, or the networks of a rule, or nodes.
type set struct {
	key string
	// pods with port, if that has a name, with any number if it has none; and in networks, if there are any.
	pods *policy.Subjects
	port policy.PodPort
	// networks only, without pods.
	networks []policy.Network
	nodes    *policy.Selector

	number  uint32 // in this process
	indexed bool
	users   map[*conjunction]struct{}
	refuses int // users that do not accept
	classes map[*class]struct{}
}

// setsOf returns the peers of a rule, none for AnyPeer.
func setsOf(r policy.Rule) []set {
	var sets []set
	if r.AnyPeer {
		return nil
	}
	for _, p := range r.Pods {
		sets = append(sets, set{key: p.String(), pods: &p})
	}
	for _, n := range r.Nodes {
		sets = append(sets, set{key: "nodes " + n.String(), nodes: &n})
	}
	if len(r.Networks) > 0 {
		sets = append(sets, set{key: "networks " + digest(r.Networks), networks: r.Networks})
	}
	return sorted(sets)
}

// peersWithPort returns the peers of a rule that are pods with a port; without a number, any port of that name.
func peersWithPort(r policy.Rule, port policy.PodPort) []set {
	var sets []set
	pods := r.Pods
	if r.AnyPeer {
		pods = []policy.Subjects{policy.AllPods()}
	}
	suffix := fmt.Sprintf(" with port %s", port)
	if port.Number == 0 {
		suffix = fmt.Sprintf(" with port %s", port.NamedPort)
	}
	for _, p := range pods {
		sets = append(sets, set{key: p.String() + suffix, pods: &p, port: port})
	}
	if len(r.Networks) > 0 {
		all := policy.AllPods()
		sets = append(sets, set{key: "networks " + digest(r.Networks) + suffix, pods: &all, port: port,
			networks: r.Networks})
	}
	return sorted(sets)
}

// sorted returns each set once.
func sorted(sets []set) []set {
	slices.SortFunc(sets, func(a, b set) int { return strings.Compare(a.key, b.key) })
	return slices.CompactFunc(sets, func(a, b set) bool { return a.key == b.key })
}

// digest is short even for thousands of networks.
func digest(networks []policy.Network) string {
	texts := make([]string, 0, len(networks))
	for _, n := range networks {
		texts = append(texts, n.String())
	}
	slices.Sort(texts)
	return fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Join(texts, "\n"))))
}

// has reports whether a set of pods has p, a pod of ns, under the address a.
func (s *set) has(p *pod, ns *namespace, a netip.Addr) bool {
	return selected(*s.pods, p, ns) && s.hasPort(p) &&
		(s.networks == nil || slices.ContainsFunc(s.networks, func(n policy.Network) bool { return contains(n, a) }))
}

func (s *set) hasPort(p *pod) bool {
	switch {
	case s.port.Name == "":
		return true
	case s.port.Number == 0:
		return p.hasPort(s.port.NamedPort)
	}
	return slices.Contains(p.Ports, s.port)
}

func contains(n policy.Network, a netip.Addr) bool {
	return n.CIDR.Contains(a) && !slices.ContainsFunc(n.Except, func(e netip.Prefix) bool { return e.Contains(a) })
}

// class is the addresses that are in the same sets.
type class struct {
	number uint32
	key    string
	sets   []*set
	addrs  int
	flows  []Match
}

// use makes n a user of the set equal to want.
func (s *side) use(c *Compiler, want set, n *conjunction) *set {
	there := s.sets[want.key]
	if there == nil {
		s.lastSet++
		there = &want
		there.number = s.lastSet
		there.users, there.classes = map[*conjunction]struct{}{}, map[*class]struct{}{}
		s.sets[want.key] = there
	}
	there.users[n] = struct{}{}
	s.refuse(c, there, n, 1)
	s.dirty.sets[there] = struct{}{}
	return there
}

// denies reports whether packets of the set get past a rule if they are not recognised as in it.
func (s *set) denies() bool { return s.refuses > 0 }

// refuse counts n, if it does not accept, among the users of a set.
func (s *side) refuse(c *Compiler, set *set, n *conjunction, more int) {
	if n.rule.Verdict == policy.Accept {
		return
	}
	denied := set.denies()
	if set.refuses += more; set.denies() == denied {
		return
	}
	for p, at := range c.eachPeer(s) {
		if _, has := set.classes[s.numbers[at.class]]; has {
			s.dirty.addrs[p] = struct{}{}
		}
	}
}

// leave is the reverse of use.
func (s *side) leave(c *Compiler, set *set, n *conjunction) {
	delete(set.users, n)
	s.refuse(c, set, n, -1)
	s.dirty.sets[set] = struct{}{}
}

// index updates the index of sets from their users, and finds the affected addresses.
func (s *side) index(c *Compiler) {
	for set := range s.dirty.sets {
		used := len(set.users) > 0
		if used != set.indexed {
			set.indexed = used
			s.indexSet(c, set)
		}
		if !used {
			delete(s.sets, set.key)
		}
	}
	s.dirty.sets = emptied(s.dirty.sets)
	s.dirtyInNetworks(c)
}

// indexSet adds a set to the lookup of addresses, or removes it.
func (s *side) indexSet(c *Compiler, set *set) {
	switch {
	case set.pods != nil:
		for name, ns := range c.namespaces {
			if !inNamespace(*set.pods, name, ns) {
				continue
			}
			if s.byNamespace[name] != nil && set.indexed {
				s.byNamespace[name] = append(s.byNamespace[name], set)
			} else {
				delete(s.byNamespace, name)
			}
			for _, p := range ns.pods {
				s.dirtyIf(p, set)
			}
		}
	case set.nodes != nil:
		delete(s.nodes, set)
		if set.indexed {
			s.nodes[set] = struct{}{}
		}
		for _, n := range c.nodes {
			for _, a := range n.Addrs {
				s.dirty.addrs[netip.PrefixFrom(a, a.BitLen())] = struct{}{}
			}
		}
	default:
		for _, n := range set.networks {
			s.edge(set, n.CIDR, 1)
			for _, e := range n.Except {
				s.edge(set, e, -1)
			}
			s.dirty.networks.add(n.CIDR)
		}
	}
}

func (s *side) dirtyIf(p *pod, set *set) {
	if !set.pods.Pods.Matches(p.Labels) {
		return
	}
	for _, a := range p.Addrs {
		s.dirty.addrs[netip.PrefixFrom(a, a.BitLen())] = struct{}{}
	}
}

// edge records that from p on, as prefixes get longer, set has one network more, or, at an exception, one less.
func (s *side) edge(set *set, p netip.Prefix, n int) {
	if !set.indexed {
		n = -n
	}
	s.dirty.addrs[p] = struct{}{}
	here := s.edges.at[p]
	if here == nil {
		s.edges.add(p)
		here = map[uint32]edge{}
		s.edges.at[p] = here
	}
	here[set.number] = edge{set, here[set.number].n + n}
	if here[set.number].n == 0 {
		delete(here, set.number)
	}
	if len(here) == 0 {
		delete(s.edges.at, p)
		s.edges.remove(p)
	}
}

// dirtyInNetworks finds the addresses in networks that have changed.
func (s *side) dirtyInNetworks(c *Compiler) {
	if len(s.dirty.networks.count) == 0 {
		return
	}
	check := func(p netip.Prefix) {
		for range s.dirty.networks.around(p) {
			s.dirty.addrs[p] = struct{}{}
			return
		}
	}
	for a := range c.addrs {
		check(netip.PrefixFrom(a, a.BitLen()))
	}
	for p := range s.edges.at {
		check(p)
	}
	s.dirty.networks = prefixes{}
}

// setsAt returns the sets that contain the addresses of p, sorted, and those of the network around p.
func (s *side) setsAt(c *Compiler, p netip.Prefix) (own, around []*set) {
	counts := map[*set]int{}
	for at := range s.edges.around(p) {
		if at == p {
			around = positive(counts)
		}
		for _, e := range s.edges.at[at] {
			counts[e.set] += e.n
		}
	}
	own = positive(counts)
	if s.edges.at[p] == nil {
		around = own
	}
	if p.IsSingleIP() {
		own = append(slices.Clip(own), s.setsOfOwners(c, p.Addr())...)
		slices.SortFunc(own, bySetNumber)
	}
	return own, around
}

func bySetNumber(a, b *set) int { return int(int64(a.number) - int64(b.number)) }

func positive(counts map[*set]int) []*set {
	var out []*set
	for set, n := range counts {
		if n > 0 {
			out = append(out, set)
		}
	}
	slices.SortFunc(out, bySetNumber)
	return out
}

// setsOfOwners returns the sets that have a as the address of a pod or a node.
func (s *side) setsOfOwners(c *Compiler, a netip.Addr) []*set {
	var out []*set
	at := c.addrs[a]
	if at == nil {
		return nil
	}
	if p := at.pod; p != nil {
		ns := c.namespaces[p.Namespace]
		for _, set := range s.setsOfNamespace(p.Namespace, ns) {
			if set.has(p, ns, a) {
				out = append(out, set)
			}
		}
	}
	for set := range s.nodes {
		if slices.ContainsFunc(at.nodes(), func(name string) bool { return set.nodes.Matches(c.nodes[name].Labels) }) {
			out = append(out, set)
		}
	}
	return out
}

// setsOfNamespace returns the sets that may have pods of a namespace.
func (s *side) setsOfNamespace(name string, ns *namespace) []*set {
	sets, ok := s.byNamespace[name]
	if ok {
		return sets
	}
	for _, set := range s.sets {
		if set.indexed && set.pods != nil && inNamespace(*set.pods, name, ns) {
			sets = append(sets, set)
		}
	}
	s.byNamespace[name] = sets
	return sets
}
