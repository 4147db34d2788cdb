package compile

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/policy"
)

// Compiler has the cluster's objects, and what follows from them for the local pods. Its methods must not be called
// at the same time. The zero value is not usable.
type Compiler struct {
	pods, local map[policy.PodKey]*pod
	namespaces  map[string]*namespace
	nodes       map[string]policy.Node
	policies    map[policy.Ref]*entry
	// owners are the pods and nodes at an address: one, unless an object is out of date.
	owners map[netip.Addr]*owners
	// numbers are those that a named port has, with the number of pods.
	numbers map[policy.NamedPort]map[uint16]int
	sides   [2]*side
	// rules are by their number.
	rules map[uint32]*conjunction
	// unranked is true if the ranks of rules are out of date, and refresh has the policies whose rules are.
	unranked bool
	refresh  map[*entry]struct{}
	// hash makes the numbers of rules, classes and groups.
	hash func(string) uint32
}

// pod is a pod that policies can select: without hostNetwork.
type pod struct {
	policy.Pod
	// policies select it, if it is local; nil if it never was.
	policies map[*entry]struct{}
	// conjunctions, groups and flows are by direction.
	conjunctions [2]map[*conjunction]struct{}
	groups       [2]*group
	flows        [2][]Match
}

// namespace is one that an object names.
type namespace struct {
	labels map[string]string
	known  bool // there is an object
	pods   map[policy.PodKey]*pod
	// policies are its NetworkPolicies.
	policies map[policy.Ref]*entry
}

// entry is a policy, and what it comes to on this node.
type entry struct {
	policy.Policy
	subjects     map[*pod]struct{}
	conjunctions map[string]*conjunction // by key
	// rank is that of the first rule, by direction, and moved is true if it has changed.
	rank  [2]uint32
	moved bool
	used  map[policy.NamedPort]struct{} // the named ports of its rules
}

// owners are the holders of an address.
type owners struct {
	pods  []*pod
	nodes []string
}

// New returns a Compiler that knows no object.
func New() *Compiler {
	c := &Compiler{
		pods:       map[policy.PodKey]*pod{},
		local:      map[policy.PodKey]*pod{},
		namespaces: map[string]*namespace{},
		nodes:      map[string]policy.Node{},
		policies:   map[policy.Ref]*entry{},
		owners:     map[netip.Addr]*owners{},
		numbers:    map[policy.NamedPort]map[uint16]int{},
		rules:      map[uint32]*conjunction{},
		refresh:    map[*entry]struct{}{},
		hash:       hash,
	}
	for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
		c.sides[d] = newSide(d)
	}
	return c
}

// SetPod adds a pod, or replaces the one of that name. p's slices and maps are kept.
func (c *Compiler) SetPod(p policy.Pod) {
	if p.HostNetwork {
		c.DeletePod(p.PodKey)
		return
	}
	old := c.pods[p.PodKey]
	if old != nil && samePod(old.Pod, p) {
		return
	}
	if old != nil {
		c.forgetPeer(old)
		if old.Local && !p.Local {
			c.deselect(old)
		}
		// What is local stays the same value: flows and rules refer to it.
		ports := !slices.Equal(old.Ports, p.Ports)
		old.Pod = p
		if ports {
			c.refreshAll(old.policies)
		}
	} else {
		old = &pod{Pod: p}
		c.pods[p.PodKey] = old
		c.namespace(p.Namespace).pods[p.PodKey] = old
	}
	c.addPeer(old)
	c.selectPod(old)
}

// DeletePod removes a pod.
func (c *Compiler) DeletePod(key policy.PodKey) {
	p := c.pods[key]
	if p == nil {
		return
	}
	c.forgetPeer(p)
	c.deselect(p)
	delete(c.pods, key)
	delete(c.namespaces[key.Namespace].pods, key)
	c.dropNamespace(key.Namespace)
}

func samePod(a, b policy.Pod) bool {
	return a.Created == b.Created && a.Local == b.Local && slices.Equal(a.Addrs, b.Addrs) &&
		slices.Equal(a.Ports, b.Ports) && maps.Equal(a.Labels, b.Labels)
}

// addPeer and forgetPeer keep what others see of a pod.
func (c *Compiler) addPeer(p *pod) {
	for _, a := range p.Addrs {
		o := c.ownersOf(a)
		o.pods = append(o.pods, p)
		slices.SortFunc(o.pods, later)
		c.dirtyAddr(a)
	}
	for _, port := range p.Ports {
		c.countPort(port, 1)
	}
}

func (c *Compiler) forgetPeer(p *pod) {
	for _, a := range p.Addrs {
		o := c.ownersOf(a)
		o.pods = slices.DeleteFunc(o.pods, func(other *pod) bool { return other == p })
		c.dropOwners(a)
		c.dirtyAddr(a)
	}
	for _, port := range p.Ports {
		c.countPort(port, -1)
	}
}

// later orders pods with one address: the later one has it. What the node itself has given to a pod, no other has: the
// API server learns that later, after a reboot say, when addresses are given anew.
func later(a, b *pod) int {
	switch {
	case a.Local != b.Local:
		if a.Local {
			return -1
		}
		return 1
	case a.Created != b.Created:
		return int(min(max(b.Created-a.Created, -1), 1))
	case a.String() < b.String():
		return -1
	}
	return 1
}

func (c *Compiler) ownersOf(a netip.Addr) *owners {
	if c.owners[a] == nil {
		c.owners[a] = &owners{}
	}
	return c.owners[a]
}

func (c *Compiler) dropOwners(a netip.Addr) {
	if o := c.owners[a]; len(o.pods)+len(o.nodes) == 0 {
		delete(c.owners, a)
	}
}

func (c *Compiler) dirtyAddr(a netip.Addr) {
	for _, s := range c.sides {
		s.dirty.addrs[netip.PrefixFrom(a, a.BitLen())] = struct{}{}
	}
}

// countPort adds n pods that have a named port. Rules that name it depend on the numbers that there are.
func (c *Compiler) countPort(p policy.PodPort, n int) {
	numbers := c.numbers[p.NamedPort]
	if numbers == nil {
		numbers = map[uint16]int{}
		c.numbers[p.NamedPort] = numbers
	}
	before := numbers[p.Number]
	numbers[p.Number] = before + n
	if before+n == 0 {
		delete(numbers, p.Number)
	}
	if len(numbers) == 0 {
		delete(c.numbers, p.NamedPort)
	}
	if before > 0 && before+n > 0 {
		return
	}
	for _, e := range c.policies {
		_, one := e.used[p.NamedPort]
		_, any := e.used[policy.NamedPort{Name: p.Name}]
		if one || any {
			c.refresh[e] = struct{}{}
		}
	}
}

// SetNamespace adds a Namespace, or replaces the one of that name. n's maps are kept.
func (c *Compiler) SetNamespace(n policy.Namespace) {
	ns := c.namespace(n.Name)
	if ns.known && maps.Equal(ns.labels, n.Labels) {
		return
	}
	ns.labels, ns.known = n.Labels, true
	c.namespaceChanged(n.Name, ns)
}

// DeleteNamespace removes a Namespace. Its pods, if there are any, are those of an unknown one then: see Closed.
func (c *Compiler) DeleteNamespace(name string) {
	ns := c.namespaces[name]
	if ns == nil || !ns.known {
		return
	}
	ns.labels, ns.known = nil, false
	c.namespaceChanged(name, ns)
	c.dropNamespace(name)
}

func (c *Compiler) namespaceChanged(name string, ns *namespace) {
	for _, s := range c.sides {
		delete(s.byNamespace, name)
	}
	for _, p := range ns.pods {
		for _, a := range p.Addrs {
			c.dirtyAddr(a)
		}
		c.selectPod(p)
	}
}

// namespace returns the one of that name, known or not.
func (c *Compiler) namespace(name string) *namespace {
	ns := c.namespaces[name]
	if ns == nil {
		ns = &namespace{pods: map[policy.PodKey]*pod{}, policies: map[policy.Ref]*entry{}}
		c.namespaces[name] = ns
	}
	return ns
}

// dropNamespace forgets a namespace that no object names any more.
func (c *Compiler) dropNamespace(name string) {
	if ns := c.namespaces[name]; !ns.known && len(ns.pods)+len(ns.policies) == 0 {
		delete(c.namespaces, name)
		for _, s := range c.sides {
			delete(s.byNamespace, name)
		}
	}
}

// SetNode adds a Node, or replaces the one of that name. n's slices and maps are kept.
func (c *Compiler) SetNode(n policy.Node) {
	old, ok := c.nodes[n.Name]
	if ok && slices.Equal(old.Addrs, n.Addrs) && maps.Equal(old.Labels, n.Labels) {
		return
	}
	c.DeleteNode(n.Name)
	c.nodes[n.Name] = n
	for _, a := range n.Addrs {
		c.ownersOf(a).nodes = append(c.ownersOf(a).nodes, n.Name)
		c.dirtyAddr(a)
	}
}

// DeleteNode removes a Node.
func (c *Compiler) DeleteNode(name string) {
	for _, a := range c.nodes[name].Addrs {
		o := c.ownersOf(a)
		o.nodes = slices.DeleteFunc(o.nodes, func(other string) bool { return other == name })
		c.dropOwners(a)
		c.dirtyAddr(a)
	}
	delete(c.nodes, name)
}

// SetPolicy adds a policy, or replaces the one of that name. p's slices are kept.
func (c *Compiler) SetPolicy(p policy.Policy) {
	e := c.policies[p.Ref]
	if e == nil {
		e = &entry{subjects: map[*pod]struct{}{}, conjunctions: map[string]*conjunction{}}
		c.policies[p.Ref] = e
		if p.Tier == policy.NetworkPolicy {
			c.namespace(p.Namespace).policies[p.Ref] = e
		}
	}
	c.unranked = c.unranked || p.Tier != policy.NetworkPolicy
	e.Policy = p
	e.used = namedPorts(p)
	for p := range e.subjects {
		c.changeSubject(e, p, false)
	}
	for _, p := range c.local {
		if c.selects(e, p) {
			c.changeSubject(e, p, true)
		}
	}
	c.refresh[e] = struct{}{}
}

// DeletePolicy removes a policy.
func (c *Compiler) DeletePolicy(ref policy.Ref) {
	e := c.policies[ref]
	if e == nil {
		return
	}
	for p := range e.subjects {
		c.changeSubject(e, p, false)
	}
	delete(c.policies, ref)
	c.unranked = c.unranked || e.Tier != policy.NetworkPolicy
	c.refresh[e] = struct{}{}
	if e.Tier == policy.NetworkPolicy {
		delete(c.namespaces[ref.Namespace].policies, ref)
		c.dropNamespace(ref.Namespace)
	}
}

func namedPorts(p policy.Policy) map[policy.NamedPort]struct{} {
	used := map[policy.NamedPort]struct{}{}
	for _, rules := range p.Rules {
		for _, r := range rules {
			for _, port := range r.NamedPorts {
				used[port] = struct{}{}
			}
		}
	}
	return used
}

// selects reports whether e applies to p.
func (c *Compiler) selects(e *entry, p *pod) bool {
	return selected(e.Subject, p, c.namespaces[p.Namespace])
}

// selected reports whether s selects p, a pod of ns.
func selected(s policy.Subjects, p *pod, ns *namespace) bool {
	return inNamespace(s, p.Namespace, ns) && s.Pods.Matches(p.Labels)
}

// inNamespace reports whether s selects pods of a namespace. One that is not known yet is selected by its name only,
// or by a selector that wants no label.
func inNamespace(s policy.Subjects, name string, ns *namespace) bool {
	switch {
	case s.Namespace != "":
		return s.Namespace == name
	case !ns.known:
		return s.Namespaces.Everything()
	}
	return s.Namespaces.Matches(ns.labels)
}

// selectPod brings up to date which policies apply to p.
func (c *Compiler) selectPod(p *pod) {
	if !p.Local {
		return
	}
	c.local[p.PodKey] = p
	if p.policies == nil {
		p.policies = map[*entry]struct{}{}
	}
	c.dirtyPod(p)
	candidates := maps.Clone(p.policies)
	for _, e := range c.namespaces[p.Namespace].policies {
		candidates[e] = struct{}{}
	}
	for _, e := range c.policies {
		if e.Tier != policy.NetworkPolicy {
			candidates[e] = struct{}{}
		}
	}
	for e := range candidates {
		_, was := p.policies[e]
		if is := c.selects(e, p); is != was {
			c.changeSubject(e, p, is)
		}
	}
}

// deselect takes p out of all policies.
func (c *Compiler) deselect(p *pod) {
	for e := range p.policies {
		c.changeSubject(e, p, false)
	}
	delete(c.local, p.PodKey)
	c.dirtyPod(p)
}

func (c *Compiler) changeSubject(e *entry, p *pod, selects bool) {
	if selects {
		e.subjects[p], p.policies[e] = struct{}{}, struct{}{}
	} else {
		delete(e.subjects, p)
		delete(p.policies, e)
	}
	c.refresh[e] = struct{}{}
	c.dirtyPod(p)
}

func (c *Compiler) refreshAll(entries map[*entry]struct{}) {
	for e := range entries {
		c.refresh[e] = struct{}{}
	}
}

func (c *Compiler) dirtyPod(p *pod) {
	for _, s := range c.sides {
		s.dirty.pods[p] = struct{}{}
	}
}
