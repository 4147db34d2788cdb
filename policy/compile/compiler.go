package compile

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/policy"
)

// Compiler has the cluster's objects, and what follows from them for the local pods. Its methods must not be called
// concurrently. The zero value is not usable.
type Compiler struct {
	local      map[policy.PodKey]*pod
	namespaces map[string]*namespace // with all pods
	nodes      map[string]policy.Node
	policies   map[policy.Ref]*entry
	addrs      map[netip.Addr]*address
	// numbers are the port numbers of a named port, with their pod count.
	numbers map[policy.NamedPort]map[uint16]int
	sides   [2]*side
	// rules are by number.
	rules map[uint32]*conjunction
	// unranked is true if the ranks of rules are out of date, and refresh has the policies with outdated rules.
	unranked bool
	refresh  map[*entry]struct{}
	// hash computes the numbers of rules, classes and groups.
	hash func(string) uint32
}

// pod is a pod that policies can select: without hostNetwork. A cluster has many of them, and few are local.
type pod struct {
	*policy.Pod
	*subject // nil if it was never local
}

// subject is what follows from policies for a local pod.
type subject struct {
	// policies select the pod.
	policies map[*entry]struct{}
	// conjunctions, groups and flows are by direction.
	conjunctions [2]map[*conjunction]struct{}
	groups       [2]*group
	flows        [2][]Match
}

// namespace is a namespace that an object names.
type namespace struct {
	labels map[string]string
	known  bool // there is an object
	pods   map[string]*pod
	// policies are its NetworkPolicies.
	policies map[policy.Ref]*entry
}

// entry is a policy, and its result on this node.
type entry struct {
	policy.Policy
	subjects     map[*pod]struct{}
	conjunctions map[string]*conjunction // by key
	// rank is the rank of the first rule, by direction, and moved is true if it has changed.
	rank  [2]uint32
	moved bool
	used  map[policy.NamedPort]struct{} // the named ports of its rules
}

// New returns a Compiler without objects.
func New() *Compiler {
	c := &Compiler{
		local:      map[policy.PodKey]*pod{},
		namespaces: map[string]*namespace{},
		nodes:      map[string]policy.Node{},
		policies:   map[policy.Ref]*entry{},
		addrs:      map[netip.Addr]*address{},
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

// SetPod adds a pod, or replaces the one of that name. p is kept: do not modify it.
func (c *Compiler) SetPod(p *policy.Pod) {
	if p.HostNetwork {
		c.DeletePod(p.PodKey)
		return
	}
	old := c.pod(p.PodKey)
	if old != nil && samePod(old.Pod, p) {
		old.Pod = p
		return
	}
	if old != nil {
		c.forgetPeer(old)
		if old.Local && !p.Local {
			c.deselect(old)
		}
		// The local part stays the same value: flows and rules refer to it.
		ports := !slices.Equal(old.Ports, p.Ports)
		old.Pod = p
		if ports && old.subject != nil {
			c.refreshAll(old.policies)
		}
	} else {
		old = &pod{Pod: p}
		c.namespace(p.Namespace).pods[p.Name] = old
	}
	c.addPeer(old)
	c.selectPod(old)
}

// DeletePod removes a pod.
func (c *Compiler) DeletePod(key policy.PodKey) {
	p := c.pod(key)
	if p == nil {
		return
	}
	c.forgetPeer(p)
	c.deselect(p)
	delete(c.namespaces[key.Namespace].pods, key.Name)
	c.dropNamespace(key.Namespace)
}

// Pod returns the pod last passed to SetPod; nil if there is none.
func (c *Compiler) Pod(key policy.PodKey) *policy.Pod {
	if p := c.pod(key); p != nil {
		return p.Pod
	}
	return nil
}

func (c *Compiler) pod(key policy.PodKey) *pod {
	if ns := c.namespaces[key.Namespace]; ns != nil {
		return ns.pods[key.Name]
	}
	return nil
}

func samePod(a, b *policy.Pod) bool {
	return a.Created == b.Created && a.Local == b.Local && slices.Equal(a.Addrs, b.Addrs) &&
		slices.Equal(a.Ports, b.Ports) && maps.Equal(a.Labels, b.Labels)
}

// addPeer and forgetPeer maintain what others see of a pod.
func (c *Compiler) addPeer(p *pod) {
	for _, a := range p.Addrs {
		c.addr(a).add(p)
		c.dirtyAddr(a)
	}
	for _, port := range p.Ports {
		c.countPort(port, 1)
	}
}

func (c *Compiler) forgetPeer(p *pod) {
	for _, a := range p.Addrs {
		c.addr(a).remove(p)
		c.dropAddr(a)
		c.dirtyAddr(a)
	}
	for _, port := range p.Ports {
		c.countPort(port, -1)
	}
}

func (c *Compiler) dirtyAddr(a netip.Addr) {
	for _, s := range c.sides {
		s.dirty.addrs[netip.PrefixFrom(a, a.BitLen())] = struct{}{}
	}
}

// countPort adds n pods that have a named port. Rules that name it depend on which numbers exist.
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

// DeleteNamespace removes a Namespace. Its pods, if there are any, are then in an unknown one: see Closed.
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

// namespace returns the namespace of that name, known or not.
func (c *Compiler) namespace(name string) *namespace {
	ns := c.namespaces[name]
	if ns == nil {
		ns = &namespace{pods: map[string]*pod{}, policies: map[policy.Ref]*entry{}}
		c.namespaces[name] = ns
	}
	return ns
}

// dropNamespace drops a namespace that no object names any more.
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
		more := c.addr(a).others()
		more.nodes = append(more.nodes, n.Name)
		c.dirtyAddr(a)
	}
}

// DeleteNode removes a Node.
func (c *Compiler) DeleteNode(name string) {
	for _, a := range c.nodes[name].Addrs {
		more := c.addr(a).others()
		more.nodes = slices.DeleteFunc(more.nodes, func(other string) bool { return other == name })
		c.dropAddr(a)
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

// inNamespace reports whether s selects pods of a namespace. One that is not known yet is selected only by name, or by
// a selector that requires no label.
func inNamespace(s policy.Subjects, name string, ns *namespace) bool {
	switch {
	case s.Namespace != "":
		return s.Namespace == name
	case !ns.known:
		return s.Namespaces.Everything()
	}
	return s.Namespaces.Matches(ns.labels)
}

// selectPod updates which policies apply to p.
func (c *Compiler) selectPod(p *pod) {
	if !p.Local {
		return
	}
	c.local[p.PodKey] = p
	if p.subject == nil {
		p.subject = &subject{policies: map[*entry]struct{}{}}
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

// deselect removes p from all policies.
func (c *Compiler) deselect(p *pod) {
	if p.subject == nil {
		return
	}
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
