package inputs

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
)

// otherPolicies are kinds of network policies that exist only if their CRDs are installed: those of the Kubernetes
// network policy group, and Antrea's. Few clusters have any, so they are polled and not watched.
var otherPolicies = []struct {
	resource schema.GroupVersionResource
	kind     string
}{
	{schema.GroupVersionResource{Group: "policy.networking.k8s.io", Version: "v1alpha1",
		Resource: "adminnetworkpolicies"}, "AdminNetworkPolicy"},
	{schema.GroupVersionResource{Group: "policy.networking.k8s.io", Version: "v1alpha1",
		Resource: "baselineadminnetworkpolicies"}, "BaselineAdminNetworkPolicy"},
	{schema.GroupVersionResource{Group: "policy.networking.k8s.io", Version: "v1alpha2",
		Resource: "clusternetworkpolicies"}, "ClusterNetworkPolicy"},
	{schema.GroupVersionResource{Group: "crd.antrea.io", Version: "v1beta1",
		Resource: "clusternetworkpolicies"}, "ClusterNetworkPolicy"},
	{schema.GroupVersionResource{Group: "crd.antrea.io", Version: "v1beta1",
		Resource: "networkpolicies"}, "NetworkPolicy"},
}

// pollOtherPolicies polls until ctx ends. It waits as long as Intervals say with jitter, up to twice as long, so
// that not all agents send requests at once.
func (k *Kubernetes) pollOtherPolicies(ctx context.Context) {
	found := make([]map[string]NetworkPolicy, len(otherPolicies))
	for wait := k.Intervals.OtherPoliciesFirst; ; wait = k.Intervals.OtherPolicies {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait + rand.N(wait)):
		}
		all := map[string]NetworkPolicy{}
		for i, p := range otherPolicies {
			now, err := listPolicies(ctx, k.client.Metadata, p.resource, p.kind)
			if err == nil {
				found[i] = now
			} // otherwise the previous ones stay: the followers report an unreachable API server
			maps.Copy(all, found[i])
		}
		k.others.Store(&all)
		k.touch()
	}
}

func listPolicies(ctx context.Context, client metadata.Interface, r schema.GroupVersionResource, kind string) (
	map[string]NetworkPolicy, error) {
	l, err := client.Resource(r).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) { // not installed
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	out := map[string]NetworkPolicy{}
	for _, o := range l.Items {
		p := NetworkPolicy{APIVersion: r.GroupVersion().String(), Kind: kind, Namespace: o.Namespace, Name: o.Name,
			UID: string(o.UID)}
		out[p.String()] = p
	}
	return out, nil
}

// Policies are all network policies of a cluster, of every kind that it serves, sorted by name.
func Policies(ctx context.Context, client metadata.Interface) ([]NetworkPolicy, error) {
	all := map[string]NetworkPolicy{}
	own, err := listPolicies(ctx, client, policies, networkPolicy().Kind)
	if err != nil {
		return nil, err
	}
	maps.Copy(all, own)
	for _, p := range otherPolicies {
		found, err := listPolicies(ctx, client, p.resource, p.kind)
		if err != nil {
			return nil, err
		}
		maps.Copy(all, found)
	}
	out := make([]NetworkPolicy, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		out = append(out, all[name])
	}
	return out, nil
}
