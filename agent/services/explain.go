package services

import (
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/kube/inputs"
)

// Endpoint is an endpoint of a Service's port in the Kubernetes API.
type Endpoint struct {
	To netip.AddrPort
	// Node is the endpoint's; empty if it is unknown.
	Node string
	// Why it is not used on this node; empty: it is.
	Why string
}

// Explain is Of with the endpoints that are not used, and why.
func Explain(s inputs.Service, all []inputs.EndpointSlice, n Node) map[Key][]Endpoint {
	out := map[Key][]Endpoint{}
	for k, b := range Of(s, all, n) {
		i := slices.IndexFunc(s.Ports, func(p inputs.ServicePort) bool {
			return p.Protocol == k.Protocol && p.Port == k.Port
		})
		list := []Endpoint{}
		for _, c := range candidates(all, s.Ports[i], k.Addr.Is4()) {
			e := Endpoint{To: c.to, Node: c.Node}
			if !slices.Contains(b.Endpoints, c.to) {
				e.Why = c.whyNot(s.Local, n)
			}
			list = append(list, e)
		}
		slices.SortFunc(list, func(a, b Endpoint) int { return a.To.Compare(b.To) })
		out[k] = list
	}
	return out
}

// whyNot says why inForce leaves out a candidate.
func (c candidate) whyNot(local bool, n Node) string {
	switch {
	case local && c.Node != n.Name:
		return "not on this node (internalTrafficPolicy: Local)"
	case c.Terminating && c.Serving:
		return "terminating, and others are ready"
	case c.Terminating:
		return "terminating"
	case !c.Ready:
		return "not ready"
	}
	return "for clients of other nodes or zones (its hints)"
}
