package controller

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// The addresses of a Node are those of its status that are addresses; its names are none.
func TestAddressesOfANode(t *testing.T) {
	n := &corev1.Node{Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}, {Type: corev1.NodeHostName, Address: "node-1"},
		{Type: corev1.NodeExternalIP, Address: "2001:db8::1"}}}}
	want := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	if got := addresses(n); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// What is computed from the world is computed again when that has changed.
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
