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

	"github.com/fairlead-cni/fairlead/kube/follow"
)

// newServiceKinds creates the stores of Services, EndpointSlices and ServiceCIDRs.
func (k *Kubernetes) newServiceKinds() {
	k.services = follow.NewKind(k.known.signal, func(o runtime.Object) (*Service, error) {
		s, err := ServiceFrom(o.(*corev1.Service))
		return &s, err
	})
	k.services.Each = k.known.putService
	k.slices = follow.NewKind(k.known.signal, func(o runtime.Object) (*EndpointSlice, error) {
		s, err := EndpointSliceFrom(o.(*discoveryv1.EndpointSlice))
		return &s, err
	})
	k.slices.Each = k.known.putSlice
	k.ranges = follow.NewKind(k.nodesChanged, func(o runtime.Object) ([]netip.Prefix, error) {
		return serviceCIDRsFrom(o.(*networkingv1.ServiceCIDR))
	})
}

// FollowServices makes Run also read Services, EndpointSlices and ServiceCIDRs: without it, none are ever known. Call
// it before Run.
func (k *Kubernetes) FollowServices() {
	k.follow(k.serviceCIDRsResource(), k.ranges)
	k.services.OnRead = func() { k.known.markRead("services") }
	k.slices.OnRead = func() { k.known.markRead("endpointslices") }
	k.follow(k.servicesResource(), k.services)
	k.follow(k.endpointSlicesResource(), k.slices)
}

func (k *Kubernetes) servicesResource() follow.Resource {
	services := k.client.Kubernetes.CoreV1().Services(metav1.NamespaceAll)
	return follow.Resource{Name: "services", Of: &corev1.Service{},
		List: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return services.List(ctx, o) },
		Watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return services.Watch(ctx, o)
		}}
}

func (k *Kubernetes) endpointSlicesResource() follow.Resource {
	s := k.client.Kubernetes.DiscoveryV1().EndpointSlices(metav1.NamespaceAll)
	return follow.Resource{Name: "endpointslices", Of: &discoveryv1.EndpointSlice{},
		List:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return s.List(ctx, o) },
		Watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return s.Watch(ctx, o) }}
}

// serviceCIDRsResource is a resource that API servers before Kubernetes 1.33 do not have.
func (k *Kubernetes) serviceCIDRsResource() follow.Resource {
	ranges := k.client.Kubernetes.NetworkingV1().ServiceCIDRs()
	return follow.Resource{Name: "servicecidrs", Of: &networkingv1.ServiceCIDR{}, Optional: true,
		List: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return ranges.List(ctx, o) },
		Watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return ranges.Watch(ctx, o)
		}}
}
