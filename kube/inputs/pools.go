package inputs

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/kube/follow"
)

// poolFrom reduces an IPPool to what agents read. Validity is not checked here: a pool that has become invalid
// allocates nothing, not even by its previous spec.
func poolFrom(p *api.IPPool) (api.IPPool, error) {
	if p.Name == "" {
		return api.IPPool{}, errors.New("an IPPool without metadata.name")
	}
	return api.IPPool{
		TypeMeta: metav1.TypeMeta{APIVersion: p.APIVersion, Kind: api.PoolKind},
		ObjectMeta: metav1.ObjectMeta{Name: p.Name, UID: p.UID, CreationTimestamp: p.CreationTimestamp,
			DeletionTimestamp: p.DeletionTimestamp, Annotations: ours(p.Annotations)},
		Spec: p.Spec, Status: api.IPPoolStatus{FreeMap: p.Status.FreeMap, Usage: p.Status.Usage}}, nil
}

// poolFromAPI reads an IPPool that the API server has sent.
func poolFromAPI(o runtime.Object) (api.IPPool, error) {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return api.IPPool{}, fmt.Errorf("%T is not an IPPool", o)
	}
	var p api.IPPool
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &p); err != nil {
		return api.IPPool{}, fmt.Errorf("IPPool %s: %w", u.GetName(), err)
	}
	return poolFrom(&p)
}

func (k *Kubernetes) poolsResource() follow.Resource {
	pools := k.client.Dynamic.Resource(api.PoolResource)
	return follow.Resource{Name: api.PoolResource.Resource, Of: &unstructured.Unstructured{},
		List: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return pools.List(ctx, o) },
		Watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return pools.Watch(ctx, o)
		}}
}

// poolsChanged reports whether the addresses of any pool may have changed. The free map, which changes all the time,
// does not count.
func poolsChanged(before, now map[string]api.IPPool) bool {
	if len(before) != len(now) || (before == nil) != (now == nil) {
		return true
	}
	for name, p := range now {
		q, had := before[name]
		p.Status, q.Status = api.IPPoolStatus{}, api.IPPoolStatus{}
		if !had || !reflect.DeepEqual(p, q) {
			return true
		}
	}
	return false
}

// knownPools are nil until they have been read.
func (k *Kubernetes) knownPools() (pools map[string]api.IPPool, bad []string) {
	pools, bad, read := k.pools.All()
	if !k.bridging || !read && len(pools) == 0 {
		return nil, nil
	}
	return pools, bad
}

// Pool implements Source.
func (k *Kubernetes) Pool(ctx context.Context, name string) (api.IPPool, bool, error) {
	if p, found := k.Snapshot().IPPools[name]; found {
		return p, true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	u, err := k.client.Dynamic.Resource(api.PoolResource).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) { // or the CustomResourceDefinition is not installed
		return api.IPPool{}, false, nil
	}
	if err != nil {
		return api.IPPool{}, false, fmt.Errorf("the agent has not seen the IPPool %s yet, and asking the API server failed: %s",
			name, follow.ShortError(err))
	}
	p, err := poolFromAPI(u)
	return p, err == nil, err
}

// Pool implements Source.
func (d *Directory) Pool(_ context.Context, name string) (api.IPPool, bool, error) {
	p, found := d.Snapshot().IPPools[name]
	if !found {
		p, found = d.Refresh().IPPools[name]
	}
	return p, found, nil
}
