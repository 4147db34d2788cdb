// Package services determines where packets to Services go: for each port of a Service with ClusterIPs, which endpoints
// are used on this node. It is pure, and chooses as kube-proxy does: the order of its checks is the one in the
// documentation of Services and EndpointSlices ("Virtual IPs and Service Proxies", "Topology Aware Routing").
package services

import (
	"bytes"
	"crypto/sha256"
	"net/netip"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/kube/inputs"
)

// Node is what decides which endpoints a node uses.
type Node struct{ Name, Zone string }

// Key is the destination of clients' packets.
type Key struct {
	Addr     netip.Addr // a ClusterIP
	Protocol uint8      // IANA's number
	Port     uint16
}

// Backends are the destinations of packets to a Key.
type Backends struct {
	// Endpoints are sorted and unique. None: connections are refused.
	Endpoints []netip.AddrPort
	// Affinity is how long a client without connections keeps its endpoint; 0: each connection chooses.
	Affinity time.Duration
}

// Of returns the backends of each ClusterIP and port of s. A ClusterIP has the endpoints of its own family.
func Of(s inputs.Service, all []inputs.EndpointSlice, n Node) map[Key]Backends {
	out := make(map[Key]Backends, len(s.ClusterIPs)*len(s.Ports))
	for _, ip := range s.ClusterIPs {
		for _, p := range s.Ports {
			if p.Protocol == 0 {
				continue
			}
			out[Key{ip, p.Protocol, p.Port}] = Backends{Affinity: s.Affinity,
				Endpoints: inForce(candidates(all, p, ip.Is4()), s.Local, n)}
		}
	}
	return out
}

// candidate is an endpoint with its port.
type candidate struct {
	inputs.Endpoint
	to netip.AddrPort
}

// candidates are the endpoints of a family that serve a port, by its name. One that is in two slices, as while it moves
// from one to the other, counts once, with the better state.
func candidates(all []inputs.EndpointSlice, p inputs.ServicePort, ipv4 bool) []candidate {
	var out []candidate
	seen := map[netip.AddrPort]int{}
	for _, s := range all {
		i := slices.IndexFunc(s.Ports, func(q inputs.ServicePort) bool {
			return q.Name == p.Name &&
				q.Protocol == p.Protocol
		})
		if i < 0 {
			continue
		}
		for _, e := range s.Endpoints {
			if e.Addr.Is4() != ipv4 {
				continue
			}
			c := candidate{e, netip.AddrPortFrom(e.Addr, s.Ports[i].Port)}
			switch j, had := seen[c.to]; {
			case !had:
				seen[c.to] = len(out)
				out = append(out, c)
			case better(c, out[j]):
				out[j] = c
			}
		}
	}
	return out
}

// better orders what two slices say about one endpoint, independently of the order of the slices: one may be older.
func better(a, b candidate) bool {
	for _, has := range []func(candidate) bool{
		func(c candidate) bool { return c.Ready },
		func(c candidate) bool { return c.Serving && c.Terminating },
		func(c candidate) bool { return c.Node != "" },
		func(c candidate) bool { return c.Hints != nil },
	} {
		if has(a) != has(b) {
			return has(a)
		}
	}
	return false
}

// inForce chooses the endpoints to use: those that are ready, of these the ones that hints name for this node or its
// zone, or, with internalTrafficPolicy Local, the node's own; if there are none, those that terminate and still serve.
func inForce(all []candidate, local bool, n Node) []netip.AddrPort {
	reachable := all
	if local {
		reachable = filter(all, func(c candidate) bool { return c.Node == n.Name && n.Name != "" })
	}
	ready := filter(reachable, func(c candidate) bool { return c.Ready })
	if !local {
		ready = hinted(ready, n)
	}
	if len(ready) == 0 {
		ready = filter(reachable, func(c candidate) bool { return c.Serving && c.Terminating })
	}
	out := make([]netip.AddrPort, 0, len(ready))
	for _, c := range ready {
		out = append(out, c.to)
	}
	slices.SortFunc(out, netip.AddrPort.Compare)
	return out
}

// Most returns at most the given number of endpoints, in order. Each node gets a different selection, so that all
// endpoints have clients, and keeps its endpoints while others come and go.
func Most(endpoints []netip.AddrPort, most int, node string) []netip.AddrPort {
	if len(endpoints) <= most {
		return endpoints
	}
	rank := make(map[netip.AddrPort][sha256.Size]byte, len(endpoints))
	for _, e := range endpoints {
		rank[e] = sha256.Sum256([]byte(node + " " + e.String()))
	}
	out := slices.SortedFunc(slices.Values(endpoints), func(a, b netip.AddrPort) int {
		x, y := rank[a], rank[b]
		return bytes.Compare(x[:], y[:])
	})[:most]
	slices.SortFunc(out, netip.AddrPort.Compare)
	return out
}

// hinted are the ready endpoints whose hints name this node, or else its zone. Hints count only if all endpoints have
// one, and one of them is for here: otherwise clients would have no endpoint.
func hinted(ready []candidate, n Node) []candidate {
	for _, by := range []struct {
		here string
		of   func(inputs.Hints) []string
	}{
		{n.Name, func(h inputs.Hints) []string { return h.ForNodes }},
		{n.Zone, func(h inputs.Hints) []string { return h.ForZones }},
	} {
		lacks := slices.ContainsFunc(ready, func(c candidate) bool { return len(by.of(c.hints())) == 0 })
		here := filter(ready, func(c candidate) bool {
			return by.here != "" && slices.Contains(by.of(c.hints()), by.here)
		})
		if !lacks && len(here) > 0 {
			return here
		}
	}
	return ready
}

func (c candidate) hints() inputs.Hints {
	if c.Hints == nil {
		return inputs.Hints{}
	}
	return *c.Hints
}

func filter(all []candidate, want func(candidate) bool) (out []candidate) {
	for _, c := range all {
		if want(c) {
			out = append(out, c)
		}
	}
	return out
}
