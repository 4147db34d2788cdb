package pods

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/fairlead-cni/fairlead/agent/status"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/cniserver"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/test/nstest"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// A failed ADD that could not be undone leaves a veth and a lease like those of a living pod. They are removed later
// all the same.
func TestRootFailedADDIsUndone(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet is sent")
	b, pod := newRebuildBed(t), nstest.New(t)
	b.pods.Board.Publish(&status.Status{PodMTU: 1410, PodCIDRs: b.pods.Board.Load().PodCIDRs})
	leased := func() int {
		leases, err := b.pods.leases.Leases()
		must(t, err)
		return len(leases)
	}
	b.applied.fails = errors.New("ovs-vswitchd does not answer")
	err := b.node.Do(func() error {
		_, err := b.pods.Add(t.Context(), cniserver.Request{ContainerID: "c", IfName: "eth0", Network: "net", Netns: pod.Path})
		return err
	})
	if !errors.Is(err, b.applied.fails) || leased() != 1 {
		t.Fatalf("the ADD: %v, and %d leases, want one", err, leased())
	}
	b.applied.fails = nil
	must(t, b.reconcile(t))
	if leased() != 0 {
		t.Errorf("the address is leased still, and the node was asked for %+v", b.applied.changes)
	}
}

// If an ADD was interrupted before there was a record, DEL releases what it had allocated from a pool.
func TestRootDELWithoutARecord(t *testing.T) {
	ovstest.UserspaceOnly(t, "no packet is sent")
	b := newRebuildBed(t)
	store, err := allocation.NewDirectory(b.pods.Config.IPAM.AllocationsDir)
	must(t, err)
	a := api.IPAllocation{Spec: api.IPAllocationSpec{Address: "10.9.0.7", Pool: "p", Phase: api.PhaseAllocated,
		Owner: api.AllocationOwner{ContainerID: "c", IfName: "eth0", Network: "net", Node: "n", BootID: "boot"}}}
	a.Name = allocation.Name("", netip.MustParseAddr(a.Spec.Address))
	_, err = store.Create(t.Context(), a)
	must(t, err)
	must(t, b.pods.Del(t.Context(), cniserver.Request{ContainerID: "c", IfName: "eth0", Network: "net"}))
	held, err := store.List(t.Context(), allocation.Filter{Node: "n"})
	must(t, err)
	if len(held) > 0 {
		t.Errorf("it holds %+v", held)
	}
}
