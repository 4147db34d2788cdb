// Package policytest generates random clusters with policies and random connections in them, and computes the expected
// verdicts: from the specifications, in a few lines, and from the flows that policy/compile returns. The two share only
// their input values with policy and policy/compile.
package policytest

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

// World is a cluster.
type World struct {
	Namespaces []*corev1.Namespace
	Pods       []*corev1.Pod
	Nodes      []*corev1.Node
	Policies   []*networkingv1.NetworkPolicy
	Cluster    []*v1alpha2.ClusterNetworkPolicy
}

// Connection is one between two addresses, of pods or not.
type Connection struct {
	From, To netip.Addr
	Protocol corev1.Protocol // ICMP for one that has no ports
	Port     int32
}

// Random makes worlds and connections.
type Random struct {
	*rand.Rand
	// Plain leaves out what other implementations interpret differently: ClusterNetworkPolicies, NotIn for labels that
	// an object does not have, rules that are not understood, policies without policyTypes.
	Plain bool
}

// New returns the same sequence for the same seed.
func New(seed uint64, plain bool) Random { return Random{rand.New(rand.NewPCG(seed, 0)), plain} }

func (r Random) often(percent int) bool { return r.IntN(100) < percent }

func pick[T any](r Random, from ...T) T { return from[r.IntN(len(from))] }

// some returns n values, of which f makes each.
func some[T any](n int, f func(int) T) (out []T) {
	for i := range n {
		out = append(out, f(i))
	}
	return out
}

// Addr returns one of the addresses that pods, nodes and others have.
func (r Random) Addr() netip.Addr { return addr(r.often(30), r.IntN(30)+1) }

func addr(v6 bool, i int) netip.Addr {
	if v6 {
		return netip.MustParseAddr(fmt.Sprintf("fd00::%x", i))
	}
	return netip.MustParseAddr(fmt.Sprintf("10.0.0.%d", i))
}

// World returns a cluster of up to 4 namespaces and 8 pods.
func (r Random) World() World {
	var w World
	w.Namespaces = some(r.IntN(4)+1, func(i int) *corev1.Namespace {
		n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("ns%d", i), Labels: r.Labels()}}
		n.Labels[corev1.LabelMetadataName] = n.Name
		return n
	})
	w.Nodes = some(2, r.Node)
	w.Pods = some(r.IntN(7)+2, func(i int) *corev1.Pod { return r.Pod(&w, i) })
	w.Policies = some(r.IntN(6), func(i int) *networkingv1.NetworkPolicy { return r.Policy(&w, i) })
	if !r.Plain {
		w.Cluster = some(r.IntN(5), func(i int) *v1alpha2.ClusterNetworkPolicy { return r.ClusterPolicy(i) })
	}
	return w
}

// Node returns the i-th node of a cluster.
func (r Random) Node(i int) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node%d", i), Labels: r.Labels()},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: addr(false, 29+i).String()}, {Type: corev1.NodeHostName, Address: "node"}}}}
}

// Labels returns labels of which selectors name some. Each object has "always".
func (r Random) Labels() map[string]string {
	labels := map[string]string{"always": pick(r, "x", "y", "z")}
	for _, key := range []string{"a", "b"} {
		if r.often(60) {
			labels[key] = pick(r, "x", "y", "z")
		}
	}
	return labels
}

// Pod returns the i-th pod of a cluster. Its addresses are its own, but those of a pod that has ended may be another's.
func (r Random) Pod(w *World, i int) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod%d", i), Labels: r.Labels(),
		Namespace: pick(r, w.Namespaces...).Name}}
	p.Spec.NodeName = pick(r, w.Nodes...).Name
	at := 2*i + 1
	if r.often(10) {
		p.Status.Phase = corev1.PodSucceeded
		at = r.IntN(16) + 1
	}
	v6 := r.often(30)
	p.Status.PodIPs = []corev1.PodIP{{IP: addr(v6, at).String()}}
	if r.often(30) {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: addr(!v6, at).String()})
	}
	if r.often(5) {
		p.Spec.HostNetwork = true
		p.Status.PodIPs = []corev1.PodIP{{IP: addr(false, 29).String()}}
	}
	c := corev1.Container{Name: "c"}
	numbers := r.Perm(len(ports))
	for i, name := range []string{"http", "metrics"} {
		if r.often(60) {
			c.Ports = append(c.Ports, corev1.ContainerPort{Name: name, Protocol: r.Protocol(), ContainerPort: ports[numbers[i]]})
		}
	}
	p.Spec.Containers = []corev1.Container{c}
	return p
}

// ports are those that pods listen on, rules name and connections go to.
var ports = []int32{80, 81, 82, 443, 8080}

// Protocol is one of those with ports.
func (r Random) Protocol() corev1.Protocol {
	return pick(r, corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)
}

// Connection returns one between addresses of the same family, most of them those of w's pods.
func (r Random) Connection(w World) Connection {
	c := Connection{From: r.addrIn(w), To: r.addrIn(w), Protocol: r.Protocol(), Port: pick(r, append(ports, 1, 65535)...)}
	for c.From.Is4() != c.To.Is4() || c.From == c.To {
		c.From, c.To = r.addrIn(w), r.addrIn(w)
	}
	if p := w.PodAt(c.To); p != nil && len(p.Spec.Containers[0].Ports) > 0 && r.often(40) {
		port := pick(r, p.Spec.Containers[0].Ports...)
		c.Protocol, c.Port = port.Protocol, port.ContainerPort
	}
	if r.often(5) && !r.Plain {
		c.Protocol, c.Port = "ICMP", 0
	}
	return c
}

func (r Random) addrIn(w World) netip.Addr {
	if r.often(30) {
		return r.Addr()
	}
	return netip.MustParseAddr(pick(r, pick(r, w.Pods...).Status.PodIPs...).IP)
}

// Selector returns one of the API.
func (r Random) Selector() metav1.LabelSelector {
	var s metav1.LabelSelector
	if r.often(35) {
		return s
	}
	if r.often(50) {
		s.MatchLabels = map[string]string{pick(r, "a", "b", "always"): pick(r, "x", "y", "z")}
	}
	for range r.IntN(3) {
		e := metav1.LabelSelectorRequirement{Key: pick(r, "a", "b", "always"), Operator: pick(r, metav1.LabelSelectorOpIn,
			metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist)}
		if e.Operator == metav1.LabelSelectorOpNotIn && r.Plain {
			e.Key = "always"
		}
		if e.Operator == metav1.LabelSelectorOpIn || e.Operator == metav1.LabelSelectorOpNotIn {
			e.Values = some(r.IntN(2)+1, func(int) string { return pick(r, "x", "y", "z") })
		}
		s.MatchExpressions = append(s.MatchExpressions, e)
	}
	return s
}

// Policy returns the i-th NetworkPolicy of a cluster.
func (r Random) Policy(w *World, i int) *networkingv1.NetworkPolicy {
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("np%d", i),
		Namespace: pick(r, w.Namespaces...).Name}}
	p.Spec.PodSelector = r.Selector()
	in, out := networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress
	p.Spec.PolicyTypes = pick(r, []networkingv1.PolicyType{in}, []networkingv1.PolicyType{out},
		[]networkingv1.PolicyType{in, out})
	if r.often(15) && !r.Plain {
		p.Spec.PolicyTypes = nil
	}
	p.Spec.Ingress = some(r.IntN(3), func(int) networkingv1.NetworkPolicyIngressRule {
		return networkingv1.NetworkPolicyIngressRule{From: r.peers(), Ports: r.ports()}
	})
	p.Spec.Egress = some(r.IntN(3), func(int) networkingv1.NetworkPolicyEgressRule {
		return networkingv1.NetworkPolicyEgressRule{To: r.peers(), Ports: r.ports()}
	})
	return p
}

func (r Random) peers() []networkingv1.NetworkPolicyPeer {
	return some(r.IntN(3), func(int) (p networkingv1.NetworkPolicyPeer) {
		pods, namespaces := r.Selector(), r.Selector()
		switch r.IntN(5) {
		case 0:
			p.PodSelector = &pods
		case 1:
			p.NamespaceSelector = &namespaces
		case 2:
			p.PodSelector, p.NamespaceSelector = &pods, &namespaces
		default:
			p.IPBlock = r.block()
		}
		if r.often(3) && !r.Plain {
			p = networkingv1.NetworkPolicyPeer{} // a field that this version does not know
		}
		return p
	})
}

// prefix returns one that has addresses of the cluster.
func (r Random) prefix() netip.Prefix {
	a := r.Addr()
	return netip.PrefixFrom(a, a.BitLen()-pick(r, 0, 0, 1, 2, 3, 4, 5, a.BitLen())).Masked()
}

func (r Random) block() *networkingv1.IPBlock {
	whole := r.prefix()
	b := &networkingv1.IPBlock{CIDR: whole.String()}
	for range r.IntN(4) {
		if e := r.prefix(); whole.Contains(e.Addr()) && e.Bits() > whole.Bits() {
			b.Except = append(b.Except, e.String())
		}
	}
	return b
}

func (r Random) ports() []networkingv1.NetworkPolicyPort {
	return some(r.IntN(3), func(int) (p networkingv1.NetworkPolicyPort) {
		protocol, number := r.Protocol(), intstr.FromInt32(pick(r, ports...))
		if protocol != corev1.ProtocolTCP || r.often(50) {
			p.Protocol = &protocol
		}
		switch r.IntN(5) {
		case 0: // all of the protocol
		case 1:
			name := intstr.FromString(pick(r, "http", "metrics", "none"))
			p.Port = &name
		case 2:
			last := pick(r, number.IntVal, number.IntVal+1, 1000, 65535)
			last = max(last, number.IntVal)
			p.Port, p.EndPort = &number, &last
		default:
			p.Port = &number
		}
		if r.often(2) && !r.Plain {
			sctp := corev1.Protocol("QUIC") // unknown
			p.Protocol = &sctp
		}
		return p
	})
}

// ClusterPolicy returns the i-th ClusterNetworkPolicy of a cluster. Each has a priority of its own.
func (r Random) ClusterPolicy(i int) *v1alpha2.ClusterNetworkPolicy {
	p := &v1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("cnp%d", r.IntN(1000)*10+i)}}
	p.Spec.Tier = pick(r, v1alpha2.AdminTier, v1alpha2.BaselineTier)
	p.Spec.Priority = int32(r.IntN(20)*5 + i)
	namespaces, pods := r.clusterPods()
	p.Spec.Subject = v1alpha2.ClusterNetworkPolicySubject{Namespaces: namespaces, Pods: pods}
	p.Spec.Ingress = some(r.IntN(4), func(i int) v1alpha2.ClusterNetworkPolicyIngressRule {
		rule := v1alpha2.ClusterNetworkPolicyIngressRule{Name: fmt.Sprint(i), Action: r.action(),
			Protocols: r.protocols(true)}
		rule.From = some(r.IntN(2)+1, func(int) (p v1alpha2.ClusterNetworkPolicyIngressPeer) {
			if !r.often(4) { // else a field that this version does not know
				p.Namespaces, p.Pods = r.clusterPods()
			}
			return p
		})
		return rule
	})
	p.Spec.Egress = some(r.IntN(4), func(i int) v1alpha2.ClusterNetworkPolicyEgressRule {
		rule := v1alpha2.ClusterNetworkPolicyEgressRule{Name: fmt.Sprint(i), Action: r.action()}
		rule.To = some(r.IntN(2)+1, func(int) v1alpha2.ClusterNetworkPolicyEgressPeer { return r.destination() })
		named := !slices.ContainsFunc(rule.To, func(p v1alpha2.ClusterNetworkPolicyEgressPeer) bool {
			return p.Nodes != nil || len(p.Networks)+len(p.DomainNames) > 0
		})
		rule.Protocols = r.protocols(named)
		return rule
	})
	return p
}

func (r Random) action() v1alpha2.ClusterNetworkPolicyRuleAction {
	if r.often(2) {
		return "Reject"
	}
	return pick(r, v1alpha2.ClusterNetworkPolicyRuleActionAccept, v1alpha2.ClusterNetworkPolicyRuleActionDeny,
		v1alpha2.ClusterNetworkPolicyRuleActionPass)
}

func (r Random) clusterPods() (*metav1.LabelSelector, *v1alpha2.NamespacedPod) {
	s := r.Selector()
	if r.often(40) {
		return &s, nil
	}
	return nil, &v1alpha2.NamespacedPod{NamespaceSelector: s, PodSelector: r.Selector()}
}

func (r Random) destination() (p v1alpha2.ClusterNetworkPolicyEgressPeer) {
	switch r.IntN(8) {
	case 0:
		if r.often(30) {
			p.DomainNames = []v1alpha2.DomainName{"kubernetes.io"}
		}
	case 1, 2:
		s := r.Selector()
		p.Nodes = &s
	case 3, 4:
		p.Networks = some(r.IntN(2)+1, func(int) v1alpha2.CIDR { return v1alpha2.CIDR(r.prefix().String()) })
	default:
		p.Namespaces, p.Pods = r.clusterPods()
	}
	return p
}

func (r Random) protocols(named bool) []v1alpha2.ClusterNetworkPolicyProtocol {
	return some(r.IntN(3), func(int) (p v1alpha2.ClusterNetworkPolicyProtocol) {
		number := pick(r, ports...)
		port := &v1alpha2.Port{Number: number}
		if r.often(30) {
			port = &v1alpha2.Port{Range: &v1alpha2.PortRange{Start: number, End: number + pick(r, int32(1), 2, 1000)}}
		}
		switch r.IntN(4) {
		case 0:
			p.TCP = &v1alpha2.ClusterNetworkPolicyProtocolTCP{DestinationPort: port}
		case 1:
			p.UDP = &v1alpha2.ClusterNetworkPolicyProtocolUDP{DestinationPort: port}
		case 2:
			p.SCTP = &v1alpha2.ClusterNetworkPolicyProtocolSCTP{DestinationPort: port}
		default:
			p.TCP = &v1alpha2.ClusterNetworkPolicyProtocolTCP{DestinationPort: port}
			if named {
				p = v1alpha2.ClusterNetworkPolicyProtocol{DestinationNamedPort: pick(r, "http", "metrics", "none")}
			}
		}
		if r.often(3) {
			p = v1alpha2.ClusterNetworkPolicyProtocol{}
		}
		return p
	})
}
