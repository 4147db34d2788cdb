package inputs

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxServiceSize is how many bytes a Service with an EndpointSlice of two endpoints may take; measured: 661.
const maxServiceSize = 860

// The memory per Service is small: there may be tens of thousands, on each node.
func TestServicesSize(t *testing.T) {
	const n = 5000
	k := &Kubernetes{kinds: kinds{known: newServices()}}
	k.newServiceKinds()
	before := heap()
	var services, endpoints []any
	for i := range n {
		v, err := k.services.Transformer()(realService(i))
		if err != nil {
			t.Fatal(err)
		}
		services = append(services, v)
		e, err := k.slices.Transformer()(realSlice(i))
		if err != nil {
			t.Fatal(err)
		}
		endpoints = append(endpoints, e)
	}
	if err := k.services.Replace(services, ""); err != nil {
		t.Fatal(err)
	}
	if err := k.slices.Replace(endpoints, ""); err != nil {
		t.Fatal(err)
	}
	k.known.markRead("services")
	k.known.markRead("endpointslices")
	if changed, known := k.known.Take(); len(changed) != n || !known {
		t.Fatalf("%d of %d Services have changed, known: %t", len(changed), n, known)
	}
	services, endpoints = nil, nil
	each := (heap() - before) / n
	t.Logf("%d bytes for each Service", each)
	if each > maxServiceSize {
		t.Errorf("want at most %d", maxServiceSize)
	}
	runtime.KeepAlive(k)
}

// heap is the memory in use after a garbage collection.
func heap() int64 {
	runtime.GC()
	runtime.GC() // frees what the first one has made unreachable
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func realService(i int) *corev1.Service {
	ip := fmt.Sprintf("10.96.%d.%d", i>>8, i&255)
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("service-%d", i),
		Namespace: fmt.Sprintf("team-%d", i%100)},
		Spec: corev1.ServiceSpec{ClusterIP: ip, ClusterIPs: []string{ip},
			Ports: []corev1.ServicePort{{Name: strings.Clone("http"), Port: 80, Protocol: corev1.ProtocolTCP}}}}
}

func realSlice(i int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("service-%d-x7k2p", i),
		Namespace: fmt.Sprintf("team-%d", i%100), Labels: map[string]string{
			discoveryv1.LabelServiceName: fmt.Sprintf("service-%d", i)}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new(strings.Clone("http")),
			Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}}}
	for j := range 2 {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{NodeName: new(fmt.Sprintf("worker-%d", (i+j)%100)),
			Addresses:  []string{fmt.Sprintf("10.%d.%d.%d", 100+j, i>>8, i&255)},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true)}})
	}
	return s
}
