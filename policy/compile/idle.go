package compile

import (
	"cmp"
	"maps"
	"slices"

	"github.com/fairlead-cni/fairlead/policy"
)

// Idle is a policy that, as a whole or in a named port, affects no pod.
type Idle struct {
	Policy policy.Ref
	// Ports are the named ports of its rules that no relevant pod has: for ingress, the policy's own pods. None: it
	// selects no pod.
	Ports []policy.NamedPort
}

// Idle returns, sorted, the policies whose labels select no pod, or that name a port that no pod has. All pods must be
// known, not only local ones. Pods with hostNetwork do not count, as no policy applies to them.
func (c *Compiler) Idle() []Idle {
	var out []Idle
	for _, ref := range slices.SortedFunc(maps.Keys(c.policies), func(a, b policy.Ref) int {
		return cmp.Compare(a.String(), b.String())
	}) {
		e := c.policies[ref]
		if !c.anySubject(e, func(*pod) bool { return true }) {
			if byLabels(e.Subject) {
				out = append(out, Idle{Policy: ref})
			}
		} else if ports := c.idlePorts(e); len(ports) > 0 {
			out = append(out, Idle{ref, ports})
		}
	}
	return out
}

// byLabels reports whether labels select the pods, since labels may be mistaken. A policy for all pods of a namespace
// may just be waiting for pods.
func byLabels(s policy.Subjects) bool {
	return !s.Pods.Everything() || s.Namespace == "" && !s.Namespaces.Everything()
}

// anySubject reports whether e selects a pod for which so is true, on any node.
func (c *Compiler) anySubject(e *entry, so func(*pod) bool) bool {
	for name, ns := range c.namespaces {
		if e.Subject.Namespace != "" {
			if name, ns = e.Subject.Namespace, c.namespaces[e.Subject.Namespace]; ns == nil {
				return false
			}
		}
		if inNamespace(e.Subject, name, ns) {
			for _, p := range ns.pods {
				if e.Subject.Pods.Matches(p.Labels) && so(p) {
					return true
				}
			}
		}
		if e.Subject.Namespace != "" {
			return false
		}
	}
	return false
}

func (c *Compiler) idlePorts(e *entry) (out []policy.NamedPort) {
	for d, rules := range e.Rules {
		for _, r := range rules {
			for _, named := range r.NamedPorts {
				idle := len(c.portsOf(named)) == 0 || policy.Direction(d) == policy.Ingress &&
					!c.anySubject(e, func(p *pod) bool {
						return slices.ContainsFunc(p.Ports, func(port policy.PodPort) bool { return port.Has(named) })
					})
				if idle && !slices.Contains(out, named) {
					out = append(out, named)
				}
			}
		}
	}
	return out
}
