package controller

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"

	"github.com/fairlead-cni/fairlead/ipam/nodecidr"
)

// A podCIDR that was just written to a Node counts as the Node's until the cache has it; another Node of that name has
// none.
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

// Once another allocator was seen to assign podCIDRs, the controller assigns none until it is restarted, even if it
// loses and regains the lease.
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

// A full range is reported once on each waiting Node, however the counts change, and on a limited number of Nodes per
// pass.
func TestEventsOfAFullRange(t *testing.T) {
	const waiting = 3*eventsInPass + 1
	events := record.NewFakeRecorder(10 * waiting)
	n := &nodeIPAM{events: events}
	n.begin()
	for pass := range 6 {
		var p nodecidr.Plan
		for i := range waiting {
			p.Waiting = append(p.Waiting, nodecidr.Waiting{Node: fmt.Sprint("n", i), UID: fmt.Sprint(i),
				Why: fmt.Sprintf("all are in use, %d of deleted Nodes", pass), Cause: "IPv4"})
		}
		before := len(events.Events)
		n.eventsWritten = 0
		n.report(p)
		if got := len(events.Events) - before; got > eventsInPass {
			t.Errorf("%d Events in pass %d", got, pass)
		}
	}
	if got := len(events.Events); got != waiting {
		t.Errorf("%d Events, want one for each of %d Nodes", got, waiting)
	}
	n.eventsWritten = 0
	n.report(nodecidr.Plan{Waiting: []nodecidr.Waiting{{Node: "n0", UID: "0", Why: "another", Cause: "IPv6"}}})
	if got := len(events.Events); got != waiting+1 {
		t.Errorf("another cause is not told: %d Events", got)
	}
}
