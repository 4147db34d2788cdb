package controller

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/controller/poolstatus"
)

// The addresses of a Node are the IP addresses in its status, without its names.
func TestAddressesOfANode(t *testing.T) {
	n := &corev1.Node{Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}, {Type: corev1.NodeHostName, Address: "node-1"},
		{Type: corev1.NodeExternalIP, Address: "2001:db8::1"}}}}
	want := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	if got := addresses(n); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// A value computed from the world is cached until the world changes.
func TestCached(t *testing.T) {
	w, computed := &world{}, 0
	var c cached[int]
	for step, want := range []int{1, 1, 2, 2} {
		if step == 2 {
			w.report()
		}
		if got := c.of(w, func() int { computed++; return computed }); got != want {
			t.Errorf("step %d: %d, want %d", step, got, want)
		}
	}
}

// lateStore gets another object right after it is listed for the first time.
type lateStore struct {
	cache.Store
	arrive func()
}

func (s *lateStore) List() []any {
	out := s.Store.List()
	if s.arrive != nil {
		s.arrive()
		s.arrive = nil
	}
	return out
}

// An allocation that arrives while pools are read counts on the next read, even without another change.
func TestLateAllocation(t *testing.T) {
	allocations := &lateStore{Store: cache.NewStore(cache.MetaNamespaceKeyFunc)}
	w := &world{pools: cache.NewStore(cache.MetaNamespaceKeyFunc), nodes: cache.NewStore(cache.MetaNamespaceKeyFunc),
		allocations: allocations}
	must(t, w.pools.Add(poolOf("p", "10.2.0.1", "10.2.0.9")))
	allocations.arrive = func() {
		must(t, allocations.Add(&api.IPAllocation{ObjectMeta: metav1.ObjectMeta{Name: "10.2.0.1"},
			Spec: api.IPAllocationSpec{Address: "10.2.0.1", Pool: "p"}}))
		w.report()
	}
	s := &poolStatus{world: w}
	for _, want := range []int64{0, 1, 1} {
		if got := poolstatus.Of(s.read(), s.warning)["p"].Usage.Used; got != want {
			t.Errorf("%d addresses in use, want %d", got, want)
		}
	}
}
