package compile

import (
	"cmp"
	"maps"
	"slices"

	"github.com/fairlead-cni/fairlead/policy"
)

// Idle is a policy that, as a whole or by a port's name, does nothing to any pod.
type Idle struct {
	Policy policy.Ref
	// Ports are those that its rules name and no pod has that they could be of: of ingress, the policy's own pods. None:
	// it selects no pod.
	Ports []policy.NamedPort
}

// Idle returns the policies whose labels select no pod, or that name a port that no pod has, sorted. All pods must be
// known, not only local ones. Those with host networks count as none, as no policy applies to them.
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

// byLabels reports whether labels select the pods, in which there may be a mistake. A policy for whatever pods a
// namespace gets waits for these.
func byLabels(s policy.Subjects) bool {
	return !s.Pods.Everything() || s.Namespace == "" && !s.Namespaces.Everything()
}

// anySubject reports whether e selects a pod that is so, on any node.
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
