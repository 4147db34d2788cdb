package inputs

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Services, EndpointSlices and ServiceCIDRs are read with the shipped RBAC rules.
func TestKubeServices(t *testing.T) {
	c := newCluster(t)
	c.makeNode(0)
	k := c.source()
	c.until(k, "the API server's own ServiceCIDR", func(s *Snapshot) bool { return len(s.ServiceCIDRs) == 1 })
	c.takes(k, "default/kubernetes") // exists from the start
	services, all := c.Admin().CoreV1().Services("default"), c.Admin().DiscoveryV1().EndpointSlices("default")
	_, err := services.Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
	c.must(err)
	c.takes(k, "default/web")
	_, err = all.Create(t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.9"}}}}, metav1.CreateOptions{})
	c.must(err)
	c.takes(k, "default/web")
	if _, endpoints, _ := k.Services().Service("default/web"); len(endpoints) != 1 || len(endpoints[0].Endpoints) != 1 {
		t.Errorf("web has %+v", endpoints)
	}
	c.must(all.Delete(t.Context(), "web-1", metav1.DeleteOptions{}))
	c.takes(k, "default/web")
	c.must(services.Delete(t.Context(), "web", metav1.DeleteOptions{}))
	c.takes(k, "default/web")
	if _, _, found := k.Services().Service("default/web"); found {
		t.Error("the Service is known after its deletion")
	}
	ranges := c.Admin().NetworkingV1().ServiceCIDRs()
	_, err = ranges.Create(t.Context(), &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "more"},
		Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.222.0.0/24"}}}, metav1.CreateOptions{})
	c.must(err)
	defer func() { c.must(ranges.Delete(t.Context(), "more", metav1.DeleteOptions{})) }()
	c.until(k, "another ServiceCIDR", func(s *Snapshot) bool { return len(s.ServiceCIDRs) == 2 })
}

// takes waits for a change of a Service.
func (c *cluster) takes(k *Kubernetes, key string) {
	c.t.Helper()
	var all []string
	for start := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		changed, _ := k.Services().Take()
		if all = append(all, changed...); slices.Contains(all, key) {
			return
		}
		if time.Since(start) > patience {
			c.t.Fatalf("no change of %s within %s, but of %v", key, patience, all)
		}
	}
}
