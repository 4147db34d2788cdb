package inputs

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/fairlead-cni/fairlead/kube/feed"
	"github.com/fairlead-cni/fairlead/policy"
)

// judged are the objects of a snapshot of manifests that policies depend on.
func (s *Snapshot) judged() map[feed.Key]any {
	out := map[feed.Key]any{}
	for name, n := range s.Nodes {
		out[feed.Key{Kind: feed.Node, Name: name}] = n.policy
	}
	for name, n := range s.Namespaces {
		out[feed.Key{Kind: feed.Namespace, Name: name}] = n.policy
	}
	for name, p := range s.Pods {
		if p.policy != nil {
			out[feed.Key{Kind: feed.Pod, Name: name}] = p.policy
		}
	}
	for _, p := range s.NetworkPolicies {
		if p.policy != nil {
			out[feed.Key{Kind: p.Kind, Name: strings.TrimPrefix(p.Namespace+"/"+p.Name, "/")}] = *p.policy
		}
	}
	return out
}

// policyPod is what policies see of a Pod, nil for one that has ended.
func policyPod(p policy.Pod, running bool) *policy.Pod {
	if !running {
		return nil
	}
	return &p
}

// In a directory, each object has what policies see of it.

func judgedNode(n *corev1.Node) (Node, error) {
	out, err := nodeFrom(n)
	out.policy = policy.FromNode(n)
	return out, err
}

func judgedPod(p *corev1.Pod) (Pod, error) {
	out, err := podFrom(p.ObjectMeta, p.Spec.NodeName)
	p.Namespace = out.Namespace
	out.policy = policyPod(policy.FromPod(p, out.NodeName))
	return out, err
}

func judgedNamespace(n *corev1.Namespace) (Namespace, error) {
	out, err := namespaceFrom(n.ObjectMeta)
	out.policy = policy.FromNamespace(n)
	return out, err
}

func networkPolicyFrom(p *networkingv1.NetworkPolicy) (NetworkPolicy, error) {
	out, err := policyFrom(p.TypeMeta, p.ObjectMeta)
	out.policy = new(policy.FromNetworkPolicy(p))
	return out, err
}

func clusterPolicyFrom(p *v1alpha2.ClusterNetworkPolicy) (NetworkPolicy, error) {
	out, err := policyFrom(p.TypeMeta, p.ObjectMeta)
	out.Namespace, out.policy = "", new(policy.FromClusterNetworkPolicy(p))
	return out, err
}

func policyObject(p NetworkPolicy) object {
	return object{p.String(), func(s *Snapshot) { s.NetworkPolicies[p.String()] = p }}
}
