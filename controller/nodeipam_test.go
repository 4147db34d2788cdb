package controller

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What was just written to a Node is its own until the cache has it; another Node of that name has nothing.
func TestRecentAssignmentIsKnown(t *testing.T) {
	n := &nodeIPAM{}
	n.begin()
	given := []netip.Prefix{netip.MustParsePrefix("10.70.0.0/24")}
	n.assigned["1"] = given
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "1"}}
	if got := n.node(object).PodCIDRs; !slices.Equal(got, given) {
		t.Errorf("before the cache has it: %v", got)
	}
	other := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "2"}}
	if got := n.node(other).PodCIDRs; len(got) > 0 {
		t.Errorf("another Node of that name: %v", got)
	}
	object.Spec.PodCIDRs = []string{"10.70.9.0/24"}
	if got := n.node(object).PodCIDRs; len(got) != 1 || got[0] != netip.MustParsePrefix("10.70.9.0/24") {
		t.Errorf("when the cache has podCIDRs: %v", got)
	}
	if len(n.assigned) > 0 {
		t.Errorf("it is remembered though the cache has it: %v", n.assigned)
	}
}

// Whoever was seen to assign podCIDRs stays the reason to assign none until the controller is restarted, also for one
// that loses and regains the lease.
func TestOtherAllocatorIsRemembered(t *testing.T) {
	n := &nodeIPAM{}
	n.begin()
	n.other = "configured only"
	if n.begin(); n.other != "" {
		t.Errorf("%q was not seen to assign, and is asked for again", n.other)
	}
	n.other, n.seen = "another", true
	if n.begin(); n.other != "another" || !n.seen {
		t.Errorf("another allocator is forgotten: %q, %t", n.other, n.seen)
	}
}
