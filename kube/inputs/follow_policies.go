package inputs

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/fairlead-cni/fairlead/kube/feed"
	"github.com/fairlead-cni/fairlead/policy"
)

var clusterPolicies = schema.GroupVersionResource{Group: "policy.networking.k8s.io", Version: "v1alpha2",
	Resource: "clusternetworkpolicies"}

// FollowPolicies has Run read what policies depend on as well: without it nothing of it is ever known. Call it before
// Run.
func (k *Kubernetes) FollowPolicies() {
	k.followLabels()
	pods := newKind(k.objectsChanged, func(o runtime.Object) (*policy.Pod, error) {
		return policyPod(policy.FromPod(o.(*corev1.Pod), k.node)), nil
	})
	pods.each = func(key string, _, p *policy.Pod, exists bool) {
		var running any
		if exists && p != nil {
			running = *p
		}
		k.rules.Put(feed.Pod, key, running)
	}
	k.follow(k.allPodsResource(), wholly{pods, func() { k.rules.Whole(feed.Pod) }})
	k.followPolicies(feed.NetworkPolicy, resource{name: "networkpolicies"}, policies, policy.ParseNetworkPolicy)
	k.followPolicies(feed.ClusterNetworkPolicy, resource{name: clusterPolicies.Resource, optional: true,
		absent: func() { k.rules.Whole(feed.ClusterNetworkPolicy) }}, clusterPolicies, policy.ParseClusterNetworkPolicy)
}

// followLabels has the Namespaces and Nodes that are read anyway bring what policies see of them.
func (k *Kubernetes) followLabels() {
	namespaces, nodes := k.namespaces.convert, k.nodes.convert
	k.namespaces.convert = func(o runtime.Object) (Namespace, error) {
		n, err := namespaces(o)
		n.policy = policy.FromNamespace(&corev1.Namespace{ObjectMeta: o.(*metav1.PartialObjectMetadata).ObjectMeta})
		return n, err
	}
	k.nodes.convert = func(o runtime.Object) (Node, error) {
		n, err := nodes(o)
		n.policy = policy.FromNode(o.(*corev1.Node))
		return n, err
	}
	k.namespaces.each = func(key string, _, n Namespace, exists bool) { k.putPart(feed.Namespace, key, n.policy, exists) }
	k.nodes.each = func(key string, _, n Node, exists bool) { k.putPart(feed.Node, key, n.policy, exists) }
	for _, f := range k.followers {
		switch f.name {
		case "nodes":
			f.store = wholly{k.nodes, func() { k.rules.Whole(feed.Node) }}
		case "namespaces":
			f.store = wholly{k.namespaces, func() { k.rules.Whole(feed.Namespace) }}
		}
	}
}

func (k *Kubernetes) putPart(kind, key string, v any, exists bool) {
	if !exists {
		v = nil
	}
	k.rules.Put(kind, key, v)
}

// followPolicies reads policies as JSON: typed objects have lost the fields that this version does not know.
func (k *Kubernetes) followPolicies(kind string, r resource, from schema.GroupVersionResource,
	parse func([]byte) (policy.Policy, error)) {
	store := newKind(k.objectsChanged, func(o runtime.Object) (policy.Policy, error) {
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
	store.each = func(key string, _, p policy.Policy, exists bool) { k.putPart(kind, key, p, exists) }
	objects := k.client.Dynamic.Resource(from)
	r.of = &unstructured.Unstructured{}
	r.list = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return objects.List(ctx, o) }
	r.watch = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return objects.Watch(ctx, o) }
	k.follow(r, wholly{store, func() { k.rules.Whole(kind) }})
}

func (k *Kubernetes) allPodsResource() resource {
	all := k.client.Kubernetes.CoreV1().Pods(metav1.NamespaceAll)
	return resource{name: "all pods", of: &corev1.Pod{},
		list:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return all.List(ctx, o) },
		watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return all.Watch(ctx, o) }}
}
