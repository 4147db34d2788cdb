package inputs

import (
	"context"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// newServiceKinds makes what holds Services, EndpointSlices and ServiceCIDRs.
func (k *Kubernetes) newServiceKinds() {
	k.services = newKind(k.known.signal, func(o runtime.Object) (*Service, error) {
		s, err := ServiceFrom(o.(*corev1.Service))
		return &s, err
	})
	k.services.each = k.known.putService
	k.slices = newKind(k.known.signal, func(o runtime.Object) (*EndpointSlice, error) {
		s, err := EndpointSliceFrom(o.(*discoveryv1.EndpointSlice))
		return &s, err
	})
	k.slices.each = k.known.putSlice
	k.ranges = newKind(k.nodesChanged, func(o runtime.Object) ([]netip.Prefix, error) {
		return serviceCIDRsFrom(o.(*networkingv1.ServiceCIDR))
	})
}

// FollowServices has Run read Services, EndpointSlices and ServiceCIDRs as well: without it none is ever known. Call it
// before Run.
func (k *Kubernetes) FollowServices() {
	k.follow(k.serviceCIDRsResource(), k.ranges)
	k.follow(k.servicesResource(), wholly{k.services, func() { k.known.whole("services") }})
	k.follow(k.endpointSlicesResource(), wholly{k.slices, func() { k.known.whole("endpointslices") }})
}

// wholly is a store that tells when it has all objects.
type wholly struct {
	store
	read func()
}

// store is what a kind is to a Reflector.
type store interface {
	cache.ReflectorStore
	cache.TransformingStore
}

// Replace implements cache.ReflectorStore.
func (w wholly) Replace(list []any, version string) error {
	err := w.store.Replace(list, version)
	if err == nil {
		w.read()
	}
	return err
}

func (k *Kubernetes) servicesResource() resource {
	services := k.client.Kubernetes.CoreV1().Services(metav1.NamespaceAll)
	return resource{name: "services", of: &corev1.Service{},
		list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return services.List(ctx, o) },
		watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return services.Watch(ctx, o)
		}}
}

func (k *Kubernetes) endpointSlicesResource() resource {
	s := k.client.Kubernetes.DiscoveryV1().EndpointSlices(metav1.NamespaceAll)
	return resource{name: "endpointslices", of: &discoveryv1.EndpointSlice{},
		list:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return s.List(ctx, o) },
		watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return s.Watch(ctx, o) }}
}

// serviceCIDRsResource is one that API servers before Kubernetes 1.33 do not have.
func (k *Kubernetes) serviceCIDRsResource() resource {
	ranges := k.client.Kubernetes.NetworkingV1().ServiceCIDRs()
	return resource{name: "servicecidrs", of: &networkingv1.ServiceCIDR{}, optional: true,
		list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return ranges.List(ctx, o) },
		watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return ranges.Watch(ctx, o)
		}}
}
