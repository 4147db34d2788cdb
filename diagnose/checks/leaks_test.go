package checks

import (
	"net/netip"
	"testing"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/diagnose/cluster"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
)

// A pod that is being deleted keeps its address while it is allocated to it. Afterwards another pod may have it.
func TestDuplicateOfALeavingPod(t *testing.T) {
	addr := netip.MustParseAddr("10.2.0.1")
	leaves, comes := cluster.Pod{Name: "leaves", UID: "leaves", IPs: []netip.Addr{addr}, Leaving: true},
		cluster.Pod{Name: "comes", UID: "comes", IPs: []netip.Addr{addr}}
	for owner, want := range map[string]int{leaves.UID: 1, comes.UID: 0} {
		held := api.IPAllocation{Spec: api.IPAllocationSpec{Address: addr.String(), Phase: api.PhaseAllocated,
			Owner: api.AllocationOwner{PodUID: owner}}}
		held.Name = allocation.Name("", addr)
		v := &cluster.View{Pods: []cluster.Pod{leaves, comes}, Allocations: []api.IPAllocation{held}}
		if got := duplicates(v); len(got) != want {
			t.Errorf("the pod that %s has it: found %+v, want %d", owner, got, want)
		}
	}
}
