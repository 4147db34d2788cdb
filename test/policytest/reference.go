package policytest

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

// Allowed is the verdict of the specifications of NetworkPolicy and ClusterNetworkPolicy for the pod self: as the
// source of c, if egress, or else as its destination.
func (w World) Allowed(c Connection, egress bool) bool {
	self, peer := w.PodAt(c.To), c.From
	if egress {
		self, peer = w.PodAt(c.From), c.To
	}
	if self == nil {
		return true
	}
	if v := w.tier(v1alpha2.AdminTier, c, self, peer, egress); v == "Accept" || v == "Deny" {
		return v == "Accept"
	}
	isolated := false
	for _, p := range w.Policies {
		types := p.Spec.PolicyTypes
		if len(types) == 0 {
			types = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
			if len(p.Spec.Egress) > 0 {
				types = append(types, networkingv1.PolicyTypeEgress)
			}
		}
		direction := networkingv1.PolicyTypeIngress
		if egress {
			direction = networkingv1.PolicyTypeEgress
		}
		if p.Namespace != self.Namespace || !matches(p.Spec.PodSelector, self.Labels) || !slices.Contains(types, direction) {
			continue
		}
		isolated = true
		if !egress {
			for _, r := range p.Spec.Ingress {
				if w.accepts(p.Namespace, r.From, r.Ports, c, peer) {
					return true
				}
			}
			continue
		}
		for _, r := range p.Spec.Egress {
			if w.accepts(p.Namespace, r.To, r.Ports, c, peer) {
				return true
			}
		}
	}
	return !isolated && w.tier(v1alpha2.BaselineTier, c, self, peer, egress) != "Deny"
}

// PodAt is the pod that selectors see at an address.
func (w World) PodAt(a netip.Addr) *corev1.Pod {
	for _, p := range w.Pods {
		if p.Status.Phase != corev1.PodSucceeded && !p.Spec.HostNetwork &&
			slices.Contains(p.Status.PodIPs, corev1.PodIP{IP: a.String()}) {
			return p
		}
	}
	return nil
}

// accepts evaluates one rule of a NetworkPolicy. If any part of it is not understood, it accepts nothing.
func (w World) accepts(namespace string, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort,
	c Connection, peer netip.Addr) bool {
	hit := len(peers) == 0
	pod := w.PodAt(peer)
	for _, p := range peers {
		switch {
		case p.IPBlock != nil:
			in := netip.MustParsePrefix(p.IPBlock.CIDR).Contains(peer)
			for _, e := range p.IPBlock.Except {
				in = in && !netip.MustParsePrefix(e).Contains(peer)
			}
			hit = hit || in
		case p.PodSelector == nil && p.NamespaceSelector == nil:
			return false
		case pod == nil:
		case p.NamespaceSelector == nil:
			hit = hit || pod.Namespace == namespace && matches(*p.PodSelector, pod.Labels)
		default:
			hit = hit || matches(*p.NamespaceSelector, w.namespace(pod).Labels) &&
				(p.PodSelector == nil || matches(*p.PodSelector, pod.Labels))
		}
	}
	port := len(ports) == 0
	for _, p := range ports {
		protocol := corev1.ProtocolTCP
		if p.Protocol != nil {
			protocol = *p.Protocol
		}
		switch {
		case protocol == "QUIC":
			return false
		case protocol != c.Protocol:
		case p.Port == nil:
			port = true
		case p.Port.Type == intstr.String:
			port = port || w.hasPort(c, p.Port.StrVal)
		case p.EndPort != nil:
			port = port || p.Port.IntVal <= c.Port && c.Port <= *p.EndPort
		default:
			port = port || p.Port.IntVal == c.Port
		}
	}
	return hit && port
}

// hasPort reports whether the connection goes to the port of that name.
func (w World) hasPort(c Connection, name string) bool {
	pod := w.PodAt(c.To)
	return pod != nil && slices.ContainsFunc(pod.Spec.Containers[0].Ports, func(p corev1.ContainerPort) bool {
		return p.Name == name && p.ContainerPort == c.Port && p.Protocol == c.Protocol
	})
}

func (w World) namespace(p *corev1.Pod) *corev1.Namespace {
	i := slices.IndexFunc(w.Namespaces, func(n *corev1.Namespace) bool { return n.Name == p.Namespace })
	return w.Namespaces[i]
}

// tier returns the action of the first rule of a tier that takes c; empty: none does.
func (w World) tier(tier v1alpha2.Tier, c Connection, self *corev1.Pod, peer netip.Addr,
	egress bool) v1alpha2.ClusterNetworkPolicyRuleAction {
	ordered := slices.Clone(w.Cluster)
	slices.SortFunc(ordered, func(a, b *v1alpha2.ClusterNetworkPolicy) int {
		return cmp.Compare(a.Spec.Priority, b.Spec.Priority)
	})
	for _, p := range ordered {
		if p.Spec.Tier != tier || w.selects(p.Spec.Subject.Namespaces, p.Spec.Subject.Pods, self) != yes {
			continue
		}
		rules := p.Spec.Egress
		if !egress {
			rules = nil
			for _, r := range p.Spec.Ingress {
				rule := v1alpha2.ClusterNetworkPolicyEgressRule{Action: r.Action, Protocols: r.Protocols}
				for _, f := range r.From {
					rule.To = append(rule.To, v1alpha2.ClusterNetworkPolicyEgressPeer{Namespaces: f.Namespaces, Pods: f.Pods})
				}
				rules = append(rules, rule)
			}
		}
		for _, r := range rules {
			if action := w.action(r, c, peer); action != "" {
				return action
			}
		}
	}
	return ""
}

// action returns what a rule does with c; empty: it does not take c. A rule that is not understood takes nothing, if
// it accepts, and otherwise denies everything.
func (w World) action(r v1alpha2.ClusterNetworkPolicyEgressRule, c Connection,
	peer netip.Addr) v1alpha2.ClusterNetworkPolicyRuleAction {
	hit, port := no, no
	for _, p := range r.To {
		hit = max(hit, w.destination(p, peer))
	}
	if len(r.Protocols) == 0 {
		port = yes
	}
	for _, p := range r.Protocols {
		port = max(port, w.protocol(p, c))
	}
	known := slices.Contains([]v1alpha2.ClusterNetworkPolicyRuleAction{"Accept", "Deny", "Pass"}, r.Action)
	switch {
	case known && hit == yes && port == yes:
		return r.Action
	case (hit == unclear || port == unclear || !known) && r.Action != "Accept":
		return "Deny"
	}
	return ""
}

// answer is the result of a part of a rule, in rising order: one that is unclear makes the whole rule unclear.
type answer int

const (
	no, yes, unclear answer = 0, 1, 2
)

func truth(b bool) answer {
	if b {
		return yes
	}
	return no
}

func (w World) destination(p v1alpha2.ClusterNetworkPolicyEgressPeer, peer netip.Addr) answer {
	switch {
	case p.Nodes != nil:
		for _, n := range w.Nodes {
			if n.Status.Addresses[0].Address == peer.String() && matches(*p.Nodes, n.Labels) {
				return yes
			}
		}
		return no
	case p.Networks != nil:
		return truth(slices.ContainsFunc(p.Networks, func(c v1alpha2.CIDR) bool {
			return netip.MustParsePrefix(string(c)).Contains(peer)
		}))
	}
	return w.selects(p.Namespaces, p.Pods, w.PodAt(peer))
}

func (w World) selects(namespaces *metav1.LabelSelector, pods *v1alpha2.NamespacedPod, p *corev1.Pod) answer {
	switch {
	case namespaces == nil && pods == nil:
		return unclear
	case p == nil:
		return no
	case namespaces != nil:
		return truth(matches(*namespaces, w.namespace(p).Labels))
	}
	return truth(matches(pods.NamespaceSelector, w.namespace(p).Labels) && matches(pods.PodSelector, p.Labels))
}

func (w World) protocol(p v1alpha2.ClusterNetworkPolicyProtocol, c Connection) answer {
	in := func(protocol corev1.Protocol, port *v1alpha2.Port) answer {
		first, last := port.Number, port.Number
		if port.Range != nil {
			first, last = port.Range.Start, port.Range.End
		}
		return truth(c.Protocol == protocol && first <= c.Port && c.Port <= last)
	}
	switch {
	case p.TCP != nil:
		return in(corev1.ProtocolTCP, p.TCP.DestinationPort)
	case p.UDP != nil:
		return in(corev1.ProtocolUDP, p.UDP.DestinationPort)
	case p.SCTP != nil:
		return in(corev1.ProtocolSCTP, p.SCTP.DestinationPort)
	case p.DestinationNamedPort != "":
		return truth(w.hasPort(c, p.DestinationNamedPort))
	}
	return unclear
}

// matches evaluates a selector as the API documents it: NotIn also selects objects without the label.
func matches(s metav1.LabelSelector, labels map[string]string) bool {
	for k, v := range s.MatchLabels {
		if have, ok := labels[k]; !ok || have != v {
			return false
		}
	}
	for _, e := range s.MatchExpressions {
		have, ok := labels[e.Key]
		in := ok && slices.Contains(e.Values, have)
		if !map[metav1.LabelSelectorOperator]bool{"In": in, "NotIn": !in, "Exists": ok, "DoesNotExist": !ok}[e.Operator] {
			return false
		}
	}
	return true
}
