package apply

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/agent/services"
	"github.com/fairlead-cni/fairlead/kube/inputs"
	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/openflow/clusterip"
)

// servicePorts are the ports of Services as the switch should translate them. Each Service is computed separately, when
// it or its endpoints have changed.
type servicePorts struct {
	allSent bool // as in policyState
	source  inputs.Source
	log     logr.Logger
	node    services.Node
	ids     clusterip.IDs
	known   bool // all Services have been read
	// of are the ports of each Service, by namespace/name: all that is kept of them. Units are computed from them when the
	// switch needs them, so a stored list is never changed.
	of map[string][]servicePort
	// claims are the Services that have a port, by its number: one, unless the data of another is out of date. The last
	// one gets it.
	claims map[uint32][]string
	// translated and refusing count the ports with endpoints, and those without.
	translated, refusing int
	// high counts the ports with endpoints for each high port.
	high map[clusterip.Port]int
}

// servicePort is a port of a Service that Open vSwitch translates.
type servicePort struct {
	services.Key
	endpoints clusterip.Endpoints
	affinity  time.Duration
}

func newServicePorts(source inputs.Source, node string, log logr.Logger) *servicePorts {
	return &servicePorts{source: source, log: log, node: services.Node{Name: node}, of: map[string][]servicePort{},
		claims: map[uint32][]string{}, high: map[clusterip.Port]int{}}
}

// shared is what the flows of all Services depend on.
func (s *servicePorts) shared(cidrs []netip.Prefix) clusterip.Services {
	if s == nil {
		return clusterip.Services{}
	}
	high := slices.SortedFunc(maps.Keys(s.high), func(a, b clusterip.Port) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
	})
	return clusterip.Services{CIDRs: cidrs, HighPorts: high}
}

// update takes the changes of Services, and returns the units that differ; one without flows is removed. known is false
// until all Services have been read.
func (s *servicePorts) update() (changed map[uint32]openflow.Unit, known bool) {
	keys, known := s.source.Services().Take()
	if !known {
		return nil, s.known
	}
	s.known = true
	if zone := s.source.Snapshot().Nodes[s.node.Name].Zone; zone != s.node.Zone {
		s.node.Zone = zone
		keys = slices.Compact(slices.Sorted(slices.Values(slices.Concat(keys, s.source.Services().Keys()))))
	}
	changed = map[uint32]openflow.Unit{}
	for _, key := range keys {
		svc, endpoints, found := s.source.Services().Service(key)
		now := map[services.Key]services.Backends{}
		if found {
			now = services.Of(svc, endpoints, s.node)
		}
		s.replace(key, now, changed)
	}
	return changed, true
}

// replace gives a Service other ports.
func (s *servicePorts) replace(service string, now map[services.Key]services.Backends,
	changed map[uint32]openflow.Unit) {
	before := s.of[service]
	delete(s.of, service)
	for _, p := range before {
		s.count(p, -1)
		id := s.id(p.Key)
		s.claims[id] = slices.DeleteFunc(s.claims[id], func(other string) bool { return other == service })
	}
	for k, b := range now {
		if clusterip.Translated(k.Protocol) {
			p := servicePort{k, clusterip.Pack(s.limited(service, k, b.Endpoints)), b.Affinity}
			s.count(p, 1)
			s.claims[s.id(k)] = append(s.claims[s.id(k)], service)
			s.of[service] = append(s.of[service], p)
		}
	}
	s.logAffinity(service, before, s.of[service])
	for _, p := range slices.Concat(before, s.of[service]) {
		s.settle(p.Key, changed)
	}
}

// limited returns as many of the endpoints as Open vSwitch supports.
func (s *servicePorts) limited(service string, k services.Key, all []netip.AddrPort) []netip.AddrPort {
	if n := len(all); n > openflow.MaxBuckets {
		s.log.Info("this node uses only some of a Service's endpoints: as many as Open vSwitch takes", "service", service,
			"port", k.Port, "endpoints", n, "used", openflow.MaxBuckets)
		return services.Most(all, openflow.MaxBuckets, s.node.Name)
	}
	return all
}

// logAffinity logs once that session affinity, which all ports of a Service share, is shorter than requested.
func (s *servicePorts) logAffinity(service string, before, now []servicePort) {
	if len(now) == 0 || now[0].affinity <= clusterip.MostAffinity ||
		len(before) > 0 && before[0].affinity == now[0].affinity {
		return
	}
	s.log.Info("clients of a Service keep their endpoint for less time than requested, as Open vSwitch has no longer "+
		"timeouts: set its sessionAffinityConfig.clientIP.timeoutSeconds to at most as many seconds, or leave ClusterIPs to "+
		"kube-proxy (services: host)", "service", service, "asked", now[0].affinity.String(),
		"is", clusterip.MostAffinity.String(), "seconds", int(clusterip.MostAffinity/time.Second))
}

func (s *servicePorts) id(k services.Key) uint32 {
	return s.ids.Of(netip.AddrPortFrom(k.Addr, k.Port), k.Protocol)
}

// settle sets the unit of a port to that of the Service that has it. A ClusterIP may be reused before the deletion of
// its old Service is seen.
func (s *servicePorts) settle(k services.Key, changed map[uint32]openflow.Unit) {
	id := s.id(k)
	claims := s.claims[id]
	if len(claims) == 0 {
		s.ids.Forget(netip.AddrPortFrom(k.Addr, k.Port), k.Protocol)
		delete(s.claims, id)
		changed[id] = openflow.Unit{}
		return
	}
	all := s.of[claims[len(claims)-1]]
	i := slices.IndexFunc(all, func(p servicePort) bool { return p.Key == k })
	changed[id] = all[i].unit(id)
}

func (p *servicePort) list() []netip.AddrPort { return p.endpoints.List(p.Addr.Is4()) }

// unit computes the port's unit when it is needed; it has no flows without endpoints.
func (p *servicePort) unit(id uint32) (u openflow.Unit) {
	if p.endpoints != "" {
		u.Build = func() openflow.Unit {
			return clusterip.Unit(id, netip.AddrPortFrom(p.Addr, p.Port), p.Protocol, p.list(), p.affinity)
		}
	}
	return u
}

// units are all that the switch should have.
func (s *servicePorts) units() map[uint32]openflow.Unit {
	out := make(map[uint32]openflow.Unit, s.translated)
	for service, ports := range s.of {
		for i := range ports {
			id := s.id(ports[i].Key)
			claims := s.claims[id]
			if u := ports[i].unit(id); claims[len(claims)-1] == service && u.Build != nil {
				out[id] = u
			}
		}
	}
	return out
}

func (s *servicePorts) count(p servicePort, by int) {
	if p.endpoints == "" {
		s.refusing += by
	} else {
		s.translated += by
	}
	for _, e := range p.list() {
		if at := (clusterip.Port{Protocol: p.Protocol, Port: e.Port()}); at.High() {
			if s.high[at] += by; s.high[at] == 0 {
				delete(s.high, at)
			}
		}
	}
}

// setServices gives the switch its Services: all of them, unless it has got all before.
func (f *Flows) setServices() {
	if f.services == nil {
		f.sw.SetUnits(nil, true)
		return
	}
	changed, known := f.services.update()
	if !known {
		return
	}
	all := !f.services.allSent
	if all {
		changed = f.services.units()
	}
	f.sw.SetUnits(changed, all)
	f.services.allSent = true
}

// SyncServices updates the switch for changed Services, and nothing else. done is false if a whole round is needed:
// after an error, for what waited for Services to be read, and if the set of high ports changes, which changes flows
// that all Services share.
func (f *Flows) SyncServices(ctx context.Context) (done bool, err error) {
	if f.services == nil {
		return true, nil
	}
	if f.sw == nil {
		return false, ErrNoSwitch
	}
	all := !f.services.allSent
	if f.setServices(); all || !f.services.shared(f.shared.CIDRs).Equal(f.shared) {
		return false, nil
	}
	if err := f.syncUnits(ctx); err != nil {
		return false, err
	}
	f.servicesSynced(ctx)
	return true, nil
}

// Unread reports whether the switch may lack flows of Services and policies because these have not been read yet.
func (f *Flows) Unread() bool {
	return f.servicesUnread() || f.policies.rules != nil && !f.policies.rules.Known()
}

func (f *Flows) servicesUnread() bool { return f.services != nil && !f.services.known }

// servicesSynced is called when the switch has all Services that it should have.
func (f *Flows) servicesSynced(ctx context.Context) {
	if f.services != nil {
		f.metrics.Services.Set(float64(f.services.translated))
		f.metrics.Refusing.Set(float64(f.services.refusing))
	}
	if !f.servicesUnread() {
		f.flushGone(ctx)
	}
}

// udp are the UDP translations that the switch should make.
func (s *servicePorts) udp() map[openflow.Translation]bool {
	out := map[openflow.Translation]bool{}
	for _, ports := range s.of {
		for _, p := range ports {
			for _, e := range p.list() {
				if p.Protocol == clusterip.UDP {
					out[openflow.Translation{Service: netip.AddrPortFrom(p.Addr, p.Port), Endpoint: e}] = true
				}
			}
		}
	}
	return out
}
