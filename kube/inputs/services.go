package inputs

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/fairlead-cni/fairlead/kube/follow"
)

// IP protocols that ports of Services may have (IANA's numbers).
const (
	protoTCP  = 6
	protoUDP  = 17
	protoSCTP = 132
)

// Labels of Services that are another program's to translate, as kube-proxy leaves them out.
const (
	otherProxy = "service.kubernetes.io/service-proxy-name"
	headless   = "service.kubernetes.io/headless"
)

// Service is what Fairlead needs of a Kubernetes Service with ClusterIPs. One without, because it is headless, of type
// ExternalName, or another program's, has no ClusterIPs here.
type Service struct {
	Namespace, Name string
	ClusterIPs      []netip.Addr
	Ports           []ServicePort
	// Affinity is how long a client without connections keeps its endpoint; 0: no session affinity.
	Affinity time.Duration
	// Local: internalTrafficPolicy is Local.
	Local bool
}

// ServicePort is one port of a Service.
type ServicePort struct {
	Name     string
	Protocol uint8 // IANA's number
	Port     uint16
}

// EndpointSlice is what Fairlead needs of an EndpointSlice.
type EndpointSlice struct {
	Namespace, Name string
	// Service is the name of the Service in the same namespace; empty: of none.
	Service   string
	Ports     []ServicePort // those of the endpoints
	Endpoints []Endpoint
}

// Endpoint is one address in an EndpointSlice, with its conditions.
type Endpoint struct {
	Addr                        netip.Addr
	Ready, Serving, Terminating bool
	// Node is the endpoint's node; empty if it is unknown, as outside of the cluster.
	Node string
	// Hints are nil for most.
	Hints *Hints
}

// Hints say for which clients an endpoint is meant: those on nodes and in zones of these names.
type Hints struct{ ForNodes, ForZones []string }

// Services are the cluster's Services with their EndpointSlices, by namespace/name. Any goroutine may use it; one takes
// the changes. There may be tens of thousands: what is passed in is not copied, and must not be changed afterwards.
type Services struct {
	mu    sync.Mutex
	all   map[string]*service
	dirty map[string]struct{}
	// unread are the kinds that have not been read completely: until then nothing is known about any Service.
	unread  map[string]bool
	changed chan struct{}
}

// service is a Service with its EndpointSlices, by name; either may be known without the other.
type service struct {
	*Service
	slices []*EndpointSlice
}

func newServices() *Services {
	return &Services{all: map[string]*service{}, dirty: map[string]struct{}{}, changed: make(chan struct{}, 1),
		unread: map[string]bool{"services": true, "endpointslices": true}}
}

// Changed receives after changes that Take has not returned yet.
func (s *Services) Changed() <-chan struct{} { return s.changed }

// Take returns the Services, by namespace/name, that have changed, or whose endpoints have, since the last call. known
// is false, and nothing is taken, until all Services and EndpointSlices have been read.
func (s *Services) Take() (changed []string, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.unread) > 0 {
		return nil, false
	}
	changed = slices.Sorted(maps.Keys(s.dirty))
	s.dirty = map[string]struct{}{} // a new map, not one as large as for all Services
	return changed, true
}

// Service returns a Service by namespace/name, with its EndpointSlices in an order that depends only on them.
func (s *Services) Service(key string) (svc Service, endpoints []EndpointSlice, found bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := cmp.Or(s.all[key], &service{})
	for _, e := range of.slices {
		endpoints = append(endpoints, *e)
	}
	if found = of.Service != nil; found {
		svc = *of.Service
	}
	return svc, endpoints, found
}

// Keys are all Services that have been read or have endpoints, by namespace/name.
func (s *Services) Keys() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.all))
}

// markRead records that all objects of a kind have been read.
func (s *Services) markRead(kind string) {
	s.mu.Lock()
	delete(s.unread, kind)
	s.mu.Unlock()
	s.signal()
}

func (s *Services) signal() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// putService stores a Service, or removes it.
func (s *Services) putService(key string, _, v *Service, _ bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := cmp.Or(s.all[key], &service{})
	delete(s.all, key)
	if of.Service = v; v != nil || len(of.slices) > 0 {
		s.all[key] = of // this key, which others hold
	}
	s.dirty[key] = struct{}{}
}

// putSlice stores an EndpointSlice, or removes it. Its Service may have changed.
func (s *Services) putSlice(_ string, before, v *EndpointSlice, _ bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change := func(e *EndpointSlice, more ...*EndpointSlice) {
		if e == nil || e.Service == "" {
			return
		}
		key := e.Namespace + "/" + e.Service
		if s.all[key] == nil {
			s.all[key] = &service{}
		}
		of := s.all[key]
		others := slices.DeleteFunc(of.slices, func(o *EndpointSlice) bool { return o.Name == e.Name })
		of.slices = slices.SortedFunc(slices.Values(append(others, more...)),
			func(a, b *EndpointSlice) int { return cmp.Compare(a.Name, b.Name) })
		if of.Service == nil && len(of.slices) == 0 {
			delete(s.all, key)
		}
		s.dirty[key] = struct{}{}
	}
	change(before)
	change(v, v)
}

// replace stores all objects of both kinds: what was known before and is not among them is gone.
func (s *Services) replace(services map[string]*Service, endpoints map[string]*EndpointSlice) {
	s.mu.Lock()
	oldServices, oldSlices := map[string]*Service{}, map[string]*EndpointSlice{}
	for key, of := range s.all {
		if of.Service != nil {
			oldServices[key] = of.Service
		}
		for _, e := range of.slices {
			oldSlices[e.Namespace+"/"+e.Name] = e
		}
	}
	s.mu.Unlock()
	follow.Each(oldServices, services, s.putService)
	follow.Each(oldSlices, endpoints, s.putSlice)
	s.markRead("services")
	s.markRead("endpointslices")
}

// ServiceFrom reads a Service. The error names what is not valid in it.
func ServiceFrom(s *corev1.Service) (Service, error) {
	if s.Name == "" {
		return Service{}, errors.New("a Service without metadata.name")
	}
	out := Service{Namespace: intern(orDefault(s.Namespace)), Name: s.Name}
	_, other := s.Labels[otherProxy]
	_, none := s.Labels[headless]
	if s.Spec.Type == corev1.ServiceTypeExternalName || other || none {
		return out, nil
	}
	ips := s.Spec.ClusterIPs
	if len(ips) == 0 && s.Spec.ClusterIP != "" {
		ips = []string{s.Spec.ClusterIP}
	}
	for _, ip := range ips {
		if ip == corev1.ClusterIPNone {
			return out, nil
		}
		a, err := netip.ParseAddr(ip)
		if err != nil {
			return Service{}, fmt.Errorf("Service %s/%s: clusterIP %q is not an IP address", out.Namespace, s.Name, ip)
		}
		out.ClusterIPs = append(out.ClusterIPs, a.Unmap())
	}
	for _, p := range s.Spec.Ports {
		out.Ports = append(out.Ports, ServicePort{intern(p.Name), protocolNumber(p.Protocol), uint16(p.Port)})
	}
	policy := s.Spec.InternalTrafficPolicy
	out.Local = policy != nil && *policy == corev1.ServiceInternalTrafficPolicyLocal
	if s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		out.Affinity = affinityOf(s.Spec.SessionAffinityConfig)
	}
	return out, nil
}

// affinityOf is the timeout of session affinity, which the API server fills in.
func affinityOf(c *corev1.SessionAffinityConfig) time.Duration {
	seconds := int32(corev1.DefaultClientIPServiceAffinitySeconds)
	if c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		seconds = *c.ClientIP.TimeoutSeconds
	}
	return time.Duration(seconds) * time.Second
}

// protocolNumber is 0 for a protocol that no Service can have.
func protocolNumber(p corev1.Protocol) uint8 {
	switch p {
	case corev1.ProtocolTCP, "":
		return protoTCP
	case corev1.ProtocolUDP:
		return protoUDP
	case corev1.ProtocolSCTP:
		return protoSCTP
	}
	return 0
}

// EndpointSliceFrom reads an EndpointSlice. The error names what is not valid in it.
func EndpointSliceFrom(s *discoveryv1.EndpointSlice) (EndpointSlice, error) {
	if s.Name == "" {
		return EndpointSlice{}, errors.New("an EndpointSlice without metadata.name")
	}
	out := EndpointSlice{Namespace: intern(orDefault(s.Namespace)), Name: s.Name,
		Service: s.Labels[discoveryv1.LabelServiceName], Endpoints: make([]Endpoint, 0, len(s.Endpoints))}
	if s.AddressType == discoveryv1.AddressTypeFQDN {
		return out, nil // names are not destinations of packets; kube-proxy leaves them out, too
	}
	for _, p := range s.Ports {
		if p.Port == nil { // any port, which has no meaning for a Service
			continue
		}
		to := ServicePort{Protocol: protoTCP, Port: uint16(*p.Port)}
		if p.Name != nil {
			to.Name = intern(*p.Name)
		}
		if p.Protocol != nil {
			to.Protocol = protocolNumber(*p.Protocol)
		}
		out.Ports = append(out.Ports, to)
	}
	for i := range s.Endpoints {
		e, err := endpointFrom(&s.Endpoints[i])
		if err != nil {
			return EndpointSlice{}, fmt.Errorf("EndpointSlice %s/%s: %w", out.Namespace, s.Name, err)
		}
		out.Endpoints = append(out.Endpoints, e)
	}
	return out, nil
}

// endpointFrom takes the first address: the API says that all of them are the same endpoint.
func endpointFrom(e *discoveryv1.Endpoint) (Endpoint, error) {
	if len(e.Addresses) == 0 {
		return Endpoint{}, errors.New("an endpoint without an address")
	}
	a, err := netip.ParseAddr(e.Addresses[0])
	if err != nil {
		return Endpoint{}, fmt.Errorf("endpoint %q is not an IP address", e.Addresses[0])
	}
	c := e.Conditions
	out := Endpoint{Addr: a.Unmap(), Ready: c.Ready == nil || *c.Ready, Serving: c.Serving == nil || *c.Serving,
		Terminating: c.Terminating != nil && *c.Terminating}
	if e.NodeName != nil {
		out.Node = intern(*e.NodeName)
	}
	if e.Hints != nil && len(e.Hints.ForNodes)+len(e.Hints.ForZones) > 0 {
		out.Hints = &Hints{}
		for _, n := range e.Hints.ForNodes {
			out.Hints.ForNodes = append(out.Hints.ForNodes, intern(n.Name))
		}
		for _, z := range e.Hints.ForZones {
			out.Hints.ForZones = append(out.Hints.ForZones, intern(z.Name))
		}
	}
	return out, nil
}

// intern keeps one copy of names that thousands of endpoints share.
func intern(s string) string { return unique.Make(s).Value() }

func serviceCIDRsFrom(c *networkingv1.ServiceCIDR) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, s := range c.Spec.CIDRs {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, fmt.Errorf("ServiceCIDR %s: %q is not a CIDR such as 10.96.0.0/16", c.Name, s)
		}
		out = append(out, p.Masked())
	}
	return out, nil
}
