package policy

import (
	"cmp"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

// ParseClusterNetworkPolicy decodes a ClusterNetworkPolicy of policy.networking.k8s.io/v1alpha2 from JSON, and finds
// fields and rules that this version does not support. It fails if the object is not one.
func ParseClusterNetworkPolicy(doc []byte) (Policy, error) {
	var o v1alpha2.ClusterNetworkPolicy
	fields, err := decode(doc, &o)
	var rules unread
	if err != nil {
		if doc, rules, err = readRules(doc); err == nil {
			o = v1alpha2.ClusterNetworkPolicy{}
			fields, err = decode(doc, &o)
		}
	}
	if err != nil {
		return Policy{}, fmt.Errorf("reading a ClusterNetworkPolicy: %w", err)
	}
	if err := checkKind(o.TypeMeta, "policy.networking.k8s.io/v1alpha2", "ClusterNetworkPolicy"); err != nil {
		return Policy{}, err
	}
	return clusterNetworkPolicy(&o, fields, rules), nil
}

// FromClusterNetworkPolicy converts an already decoded object. Fields that its type does not have have been lost: see
// ParseClusterNetworkPolicy.
func FromClusterNetworkPolicy(o *v1alpha2.ClusterNetworkPolicy) Policy {
	return clusterNetworkPolicy(o, nil, nil)
}

func clusterNetworkPolicy(o *v1alpha2.ClusterNetworkPolicy, fields unknown, rules unread) Policy {
	p := Policy{Ref: Ref{Kind: "ClusterNetworkPolicy", Name: o.Name}, Priority: int(o.Spec.Priority)}
	switch o.Spec.Tier {
	case v1alpha2.AdminTier:
		p.Tier = Admin
	case v1alpha2.BaselineTier:
		p.Tier = Baseline
	default:
		p.Tier = Baseline
		p.problem("the tier %q is unknown: the policy applies to no pod", o.Spec.Tier)
		return p
	}
	subject, err := clusterSubjects(o.Spec.Subject.Namespaces, o.Spec.Subject.Pods)
	if field := fields.in("spec.subject"); field != "" {
		err = fmt.Errorf("the field %s is unknown", field)
	}
	if err != nil {
		p.problem("subject: %v: the policy applies to no pod", err)
		return p
	}
	p.Subject = subject
	whole := fields.outside("spec.ingress", "spec.egress")
	for i, r := range o.Spec.Ingress {
		rule := Rule{Index: i, Name: r.Name}
		err := rules[rulePath(Ingress, i)]
		for _, peer := range r.From {
			err = cmp.Or(err, rule.addPods(peer.Namespaces, peer.Pods))
		}
		p.addClusterRule(fields, whole, Ingress, rule, r.Action, len(r.From), r.Protocols, err)
	}
	for i, r := range o.Spec.Egress {
		rule := Rule{Index: i, Name: r.Name}
		err := rules[rulePath(Egress, i)]
		for _, peer := range r.To {
			err = cmp.Or(err, rule.addDestination(peer))
		}
		p.addClusterRule(fields, whole, Egress, rule, r.Action, len(r.To), r.Protocols, err)
	}
	return p
}

// addClusterRule adds r; its peers have been read, with the result err. whole is an unknown field that affects all
// rules.
func (p *Policy) addClusterRule(fields unknown, whole string, d Direction, r Rule,
	action v1alpha2.ClusterNetworkPolicyRuleAction, peers int, protocols []v1alpha2.ClusterNetworkPolicyProtocol,
	err error) {
	path := rulePath(d, r.Index)
	if field := cmp.Or(fields.in(path), whole); field != "" {
		err = fmt.Errorf("the field %s is unknown", field)
	}
	if peers == 0 {
		err = cmp.Or(err, fmt.Errorf("it has no peers"))
	}
	r.AnyPort = len(protocols) == 0
	for _, protocol := range protocols {
		err = cmp.Or(err, r.addProtocol(protocol))
	}
	if len(r.NamedPorts) > 0 && len(r.Networks)+len(r.Nodes) > 0 {
		err = cmp.Or(err, fmt.Errorf("a named port with networks or nodes, which have none"))
	}
	switch action {
	case v1alpha2.ClusterNetworkPolicyRuleActionAccept:
		r.Verdict = Accept
	case v1alpha2.ClusterNetworkPolicyRuleActionDeny:
		r.Verdict = Deny
	case v1alpha2.ClusterNetworkPolicyRuleActionPass:
		r.Verdict = Pass
	default:
		err = cmp.Or(err, fmt.Errorf("the action %q is unknown", action))
	}
	switch {
	case err == nil:
		p.Rules[d] = append(p.Rules[d], r)
	case r.Verdict == Accept:
		p.problem("%s accepts nothing: %v", path, err)
	default:
		p.problem("%s denies everything: %v", path, err)
		p.Rules[d] = append(p.Rules[d], Rule{Index: r.Index, Name: r.Name, Verdict: Deny, AnyPeer: true, AnyPort: true})
	}
}

// addPods adds a peer given by selectors.
func (r *Rule) addPods(namespaces *metav1.LabelSelector, pods *v1alpha2.NamespacedPod) error {
	s, err := clusterSubjects(namespaces, pods)
	if err == nil {
		r.Pods = append(r.Pods, s)
	}
	return err
}

// addDestination adds a peer of an egress rule, which has only one field.
func (r *Rule) addDestination(peer v1alpha2.ClusterNetworkPolicyEgressPeer) error {
	selects := peer.Namespaces != nil || peer.Pods != nil
	fields := 0
	for _, set := range []bool{selects, peer.Nodes != nil, len(peer.Networks) > 0, len(peer.DomainNames) > 0} {
		if set {
			fields++
		}
	}
	switch {
	case fields > 1:
		return fmt.Errorf("a peer with more than one field: %s", compact(peer))
	case len(peer.DomainNames) > 0:
		return fmt.Errorf("domainNames are not supported")
	case peer.Nodes != nil:
		s, err := selector(*peer.Nodes)
		r.Nodes = append(r.Nodes, s)
		return err
	}
	for _, cidr := range peer.Networks {
		n, err := network(string(cidr), nil)
		if err != nil {
			return err
		}
		r.Networks = append(r.Networks, n)
	}
	if len(peer.Networks) > 0 {
		return nil
	}
	return r.addPods(peer.Namespaces, peer.Pods)
}

// clusterSubjects reads the two ways to select pods, of which exactly one is set.
func clusterSubjects(namespaces *metav1.LabelSelector, pods *v1alpha2.NamespacedPod) (Subjects, error) {
	switch {
	case namespaces != nil && pods != nil:
		return Subjects{}, fmt.Errorf("both namespaces and pods")
	case namespaces != nil:
		s, err := selector(*namespaces)
		return Subjects{Namespaces: s, Pods: everything()}, err
	case pods == nil:
		return Subjects{}, fmt.Errorf("it has no field that this version supports")
	}
	ns, err := selector(pods.NamespaceSelector)
	if err != nil {
		return Subjects{}, err
	}
	s, err := selector(pods.PodSelector)
	return Subjects{Namespaces: ns, Pods: s}, err
}

func (r *Rule) addProtocol(p v1alpha2.ClusterNetworkPolicyProtocol) error {
	type portOf struct {
		protocol Protocol
		port     *v1alpha2.Port
	}
	var ports []portOf
	if p.TCP != nil {
		ports = append(ports, portOf{TCP, p.TCP.DestinationPort})
	}
	if p.UDP != nil {
		ports = append(ports, portOf{UDP, p.UDP.DestinationPort})
	}
	if p.SCTP != nil {
		ports = append(ports, portOf{SCTP, p.SCTP.DestinationPort})
	}
	named := p.DestinationNamedPort != ""
	switch {
	case named && len(ports) == 0:
		r.NamedPorts = append(r.NamedPorts, NamedPort{Name: p.DestinationNamedPort})
		return nil
	case named || len(ports) != 1:
		return fmt.Errorf("the protocol %s does not have exactly one field that this version supports", compact(p))
	}
	to := ports[0]
	switch {
	case to.port == nil || (to.port.Number == 0) == (to.port.Range == nil):
		return fmt.Errorf("the protocol %s does not have exactly one of number and range", compact(p))
	case to.port.Range != nil:
		return r.addRange(to.protocol, to.port.Range.Start, to.port.Range.End)
	}
	return r.addRange(to.protocol, to.port.Number, to.port.Number)
}
