package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// ParseNetworkPolicy decodes a NetworkPolicy of networking.k8s.io/v1 from JSON, and finds fields that this version does
// not support. It fails if the object is not one.
func ParseNetworkPolicy(doc []byte) (Policy, error) {
	var o networkingv1.NetworkPolicy
	fields, err := decode(doc, &o)
	if err != nil {
		return Policy{}, fmt.Errorf("reading a NetworkPolicy: %w", err)
	}
	if err := checkKind(o.TypeMeta, "networking.k8s.io/v1", "NetworkPolicy"); err != nil {
		return Policy{}, err
	}
	return networkPolicy(&o, fields), nil
}

// FromNetworkPolicy converts an already decoded object. Fields that its type does not have have been lost: see
// ParseNetworkPolicy.
func FromNetworkPolicy(o *networkingv1.NetworkPolicy) Policy { return networkPolicy(o, nil) }

func networkPolicy(o *networkingv1.NetworkPolicy, fields unknown) Policy {
	p := Policy{
		Ref:  Ref{"NetworkPolicy", cmp.Or(o.Namespace, metav1.NamespaceDefault), o.Name},
		Tier: NetworkPolicy,
	}
	p.isolate(o.Spec)
	pods, err := selector(o.Spec.PodSelector)
	p.Subject = Subjects{Namespace: p.Namespace, Pods: pods}
	field := fields.outside("spec.ingress", "spec.egress")
	if field != "" {
		err = fmt.Errorf("the field %s is unknown", field)
	}
	if err != nil {
		p.problem("%v: all pods of namespace %s are isolated, and the policy accepts nothing", err, p.Namespace)
		p.Subject.Pods, p.Isolates = everything(), [2]bool{true, true}
		return p
	}
	for i, r := range o.Spec.Ingress {
		p.addAccept(fields, Ingress, i, r.From, r.Ports)
	}
	for i, r := range o.Spec.Egress {
		p.addAccept(fields, Egress, i, r.To, r.Ports)
	}
	return p
}

// isolate applies the default of policyTypes, as the API server does.
func (p *Policy) isolate(spec networkingv1.NetworkPolicySpec) {
	if len(spec.PolicyTypes) == 0 {
		p.Isolates = [2]bool{Ingress: true, Egress: len(spec.Egress) > 0}
	}
	for _, t := range spec.PolicyTypes {
		switch t {
		case networkingv1.PolicyTypeIngress:
			p.Isolates[Ingress] = true
		case networkingv1.PolicyTypeEgress:
			p.Isolates[Egress] = true
		default:
			p.problem("the policyType %s is unknown: its pods are isolated in both directions", t)
			p.Isolates = [2]bool{true, true}
		}
	}
}

func (p *Policy) problem(format string, args ...any) {
	p.Problems = append(p.Problems, fmt.Sprintf(format, args...))
}

// addAccept adds a rule of a NetworkPolicy, unless something in it is not understood. Rules of a direction in which the
// policy does not isolate have no effect.
func (p *Policy) addAccept(fields unknown, d Direction, index int, peers []networkingv1.NetworkPolicyPeer,
	ports []networkingv1.NetworkPolicyPort) {
	path := fmt.Sprintf("spec.%s[%d]", d, index)
	if !p.Isolates[d] {
		p.problem("%s has no effect: policyTypes does not name this direction", path)
		return
	}
	r := Rule{Index: index, Verdict: Accept, AnyPeer: len(peers) == 0, AnyPort: len(ports) == 0}
	var err error
	if field := fields.in(path); field != "" {
		err = fmt.Errorf("the field %s is unknown", field)
	}
	for i, peer := range peers {
		if e := r.addPeer(p.Namespace, peer); e != nil {
			err = cmp.Or(err, fmt.Errorf("peer %d: %w", i, e))
		}
	}
	for i, port := range ports {
		if e := r.addPort(port); e != nil {
			err = cmp.Or(err, fmt.Errorf("port %d: %w", i, e))
		}
	}
	if err != nil {
		p.problem("%s accepts nothing: %v", path, err)
		return
	}
	p.Rules[d] = append(p.Rules[d], r)
}

func (r *Rule) addPeer(namespace string, peer networkingv1.NetworkPolicyPeer) error {
	selects := peer.PodSelector != nil || peer.NamespaceSelector != nil
	switch {
	case peer.IPBlock != nil && selects:
		return fmt.Errorf("ipBlock together with a selector")
	case peer.IPBlock != nil:
		n, err := network(peer.IPBlock.CIDR, peer.IPBlock.Except)
		if err == nil && n.CIDR.IsValid() {
			r.Networks = append(r.Networks, n)
		}
		return err
	case !selects:
		return fmt.Errorf("it has no field that this version supports")
	}
	s := Subjects{Namespace: namespace, Pods: everything()}
	var err error
	if peer.NamespaceSelector != nil {
		s.Namespace = ""
		if s.Namespaces, err = selector(*peer.NamespaceSelector); err != nil {
			return err
		}
	}
	if peer.PodSelector != nil {
		if s.Pods, err = selector(*peer.PodSelector); err != nil {
			return err
		}
	}
	r.Pods = append(r.Pods, s)
	return nil
}

func (r *Rule) addPort(p networkingv1.NetworkPolicyPort) error {
	protocol := TCP
	if p.Protocol != nil {
		var err error
		if protocol, err = protocolOf(*p.Protocol); err != nil {
			return err
		}
	}
	switch {
	case p.Port == nil && p.EndPort != nil:
		return fmt.Errorf("endPort without port")
	case p.Port == nil:
		r.Ports = append(r.Ports, PortRange{protocol, 0, 65535})
		return nil
	case p.Port.Type == intstr.String && p.EndPort != nil:
		return fmt.Errorf("endPort with the named port %s", p.Port.StrVal)
	case p.Port.Type == intstr.String && p.Port.StrVal == "":
		return fmt.Errorf("a named port without a name")
	case p.Port.Type == intstr.String:
		r.NamedPorts = append(r.NamedPorts, NamedPort{protocol, p.Port.StrVal})
		return nil
	}
	last := p.Port.IntVal
	if p.EndPort != nil {
		last = *p.EndPort
	}
	return r.addRange(protocol, p.Port.IntVal, last)
}

func (r *Rule) addRange(protocol Protocol, first, last int32) error {
	if first < 1 || last > 65535 || last < first {
		return fmt.Errorf("the ports %d to %d are not a range from 1 to 65535", first, last)
	}
	r.Ports = append(r.Ports, PortRange{protocol, uint16(first), uint16(last)})
	return nil
}

func protocolOf(p corev1.Protocol) (Protocol, error) {
	switch p {
	case corev1.ProtocolTCP, "":
		return TCP, nil
	case corev1.ProtocolUDP:
		return UDP, nil
	case corev1.ProtocolSCTP:
		return SCTP, nil
	}
	return 0, fmt.Errorf("the protocol %s is unknown", p)
}

// selector reads a selector of the API. Its error names an unknown operator or an invalid label value.
func selector(s metav1.LabelSelector) (Selector, error) {
	parsed, err := metav1.LabelSelectorAsSelector(&s)
	if err != nil {
		return Selector{}, fmt.Errorf("the selector %s: %w", compact(s), err)
	}
	return newSelector(parsed), nil
}

// everything is the selector {}.
func everything() Selector {
	s, _ := selector(metav1.LabelSelector{}) // has no requirement that could be wrong
	return s
}

// network reads a CIDR and its exceptions. It returns the zero Network if the exceptions leave nothing of it.
func network(cidr string, except []string) (Network, error) {
	whole, err := prefix(cidr)
	if err != nil {
		return Network{}, err
	}
	n := Network{CIDR: whole}
	var parts []netip.Prefix
	for _, text := range except {
		e, err := prefix(text)
		switch {
		case err != nil:
			return Network{}, err
		case e.Bits() <= whole.Bits() && e.Overlaps(whole):
			return Network{}, nil
		case e.Overlaps(whole):
			parts = append(parts, e)
		}
	}
	// Shorter prefixes of the same address come first, and those inside one follow it.
	slices.SortFunc(parts, netip.Prefix.Compare)
	for _, e := range parts {
		if i := len(n.Except); i == 0 || !n.Except[i-1].Overlaps(e) {
			n.Except = append(n.Except, e)
		}
	}
	return n, nil
}

// prefix reads a CIDR as the API has always accepted it: with host bits, which are ignored.
func prefix(cidr string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(cidr)
	if err != nil {
		return netip.Prefix{}, err
	}
	if p.Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("%s is an IPv4-mapped IPv6 address", cidr)
	}
	return p.Masked(), nil
}
