package inputs

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/fairlead-cni/fairlead/kube/feed"
	"github.com/fairlead-cni/fairlead/kube/follow"
	"github.com/fairlead-cni/fairlead/kube/peers"
	"github.com/fairlead-cni/fairlead/policy"
)

var clusterPolicies = schema.GroupVersionResource{Group: "policy.networking.k8s.io", Version: "v1alpha2",
	Resource: "clusternetworkpolicies"}

// LastPoliciesPath is where a node keeps policies and what they depend on.
const LastPoliciesPath = "/var/lib/fairlead/last-policies.json"

// FollowPolicies makes Run also read what policies depend on, and keep it in file: without it, none of that is ever
// known. Call it before Run.
func (k *Kubernetes) FollowPolicies(file string) {
	k.peers = peers.New(k.judged, k.server, k.client.Kubernetes.CoreV1(), k.node, file, k.log)
	k.followLabels()
	k.followPolicies(feed.NetworkPolicy, follow.Resource{Name: "networkpolicies"}, policies, policy.ParseNetworkPolicy)
	defined := follow.Definitions{Dynamic: k.client.Dynamic, Metadata: k.client.Metadata,
		Discovery: k.client.Kubernetes.Discovery()}
	k.followPolicies(feed.ClusterNetworkPolicy, follow.Resource{Name: clusterPolicies.Resource, Optional: true,
		Absent: func(ctx context.Context) error { return defined.Absent(ctx, clusterPolicies) },
	}, clusterPolicies, policy.ParseClusterNetworkPolicy)
}

// followLabels makes the Namespaces, Nodes and own Pods, which are read anyway, deliver what policies see of them. Of
// these Pods, more than metadata is then read.
func (k *Kubernetes) followLabels() {
	ofNamespace, ofNode := k.namespaces.Convert, k.nodes.Convert
	k.namespaces.Convert = func(o runtime.Object) (Namespace, error) {
		n, err := ofNamespace(o)
		n.policy = policy.FromNamespace(&corev1.Namespace{ObjectMeta: o.(*metav1.PartialObjectMetadata).ObjectMeta})
		return n, err
	}
	k.nodes.Convert = func(o runtime.Object) (Node, error) {
		n, err := ofNode(o)
		n.policy = policy.FromNode(o.(*corev1.Node))
		return n, err
	}
	k.pods.Convert = func(o runtime.Object) (Pod, error) {
		pod := o.(*corev1.Pod)
		p, err := podFrom(pod.ObjectMeta, k.node)
		p.policy = policyPod(policy.FromPod(pod, k.node))
		return p, err
	}
	k.namespaces.Each = func(key string, _, n Namespace, exists bool) { k.putPart(feed.Namespace, key, n.policy, exists) }
	k.nodes.Each = func(key string, _, n Node, exists bool) { k.putPart(feed.Node, key, n.policy, exists) }
	// A rule that denies applies to a Node even if its podCIDR, or an address for tunnels, is rejected. Its other
	// addresses are the current ones: the last valid Node may have had others, which a rule that accepts would open.
	k.nodes.Part = func(key string, n Node) { k.putPart(feed.Node, key, n.policy, true) }
	k.pods.Each = func(key string, _, p Pod, exists bool) {
		k.putPart(feed.Pod, key, p.policy, exists && p.policy != nil)
	}
	k.namespaces.OnRead = func() { k.judged.MarkRead(feed.Namespace) }
	k.nodes.OnRead = func() { k.judged.MarkRead(feed.Node) }
	k.pods.OnRead = func() { k.judged.MarkRead(feed.Pod) }
	for _, f := range k.followers {
		if f.Name == pods.Resource {
			f.Resource = peers.Pods(k.client.Kubernetes.CoreV1(), metav1.NamespaceAll,
				fields.OneTermEqualSelector("spec.nodeName", k.node))
			f.Name = pods.Resource
		}
		f.Newest = f.Newest || f.Name == pods.Resource || f.Name == namespaces.Resource
	}
}

func (k *Kubernetes) putPart(kind, key string, v any, exists bool) {
	if !exists {
		v = nil
	}
	k.judged.Put(kind, key, v)
}

// followPolicies reads policies as JSON: typed objects lack the fields that this version does not know.
func (k *Kubernetes) followPolicies(kind string, r follow.Resource, from schema.GroupVersionResource,
	parse func([]byte) (policy.Policy, error)) {
	store := follow.NewKind(k.objectsChanged, func(o runtime.Object) (policy.Policy, error) {
		u, ok := o.(*unstructured.Unstructured)
		if !ok {
			return policy.Policy{}, fmt.Errorf("%T is no %s", o, kind)
		}
		doc, err := u.MarshalJSON()
		if err != nil {
			return policy.Policy{}, err
		}
		return parse(doc)
	})
	store.Each = func(key string, _, p policy.Policy, exists bool) { k.putPart(kind, key, p, exists) }
	objects := k.client.Dynamic.Resource(from)
	r.Of, r.Newest = &unstructured.Unstructured{}, true
	r.List = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return objects.List(ctx, o) }
	r.Watch = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return objects.Watch(ctx, o) }
	store.OnRead = func() { k.judged.MarkRead(kind) }
	k.follow(r, store)
}
