package allocator

import (
	"context"
	"errors"
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
)

// Restore makes the allocation of an address again that a living pod has and that
// was lost. Whoever came upon the address meanwhile may have marked it: the pod
// answers on the wire. keep says for whom it is kept, nil for nobody: then it may have been
// reserved again. The error is an *allocation.TakenError if another owner has it.
func (a *Allocator) Restore(
	ctx context.Context, o api.AllocationOwner, pool string, addr netip.Addr, keep *api.AllocationReservation) error {
	o.Node = a.Node
	want := api.IPAllocation{ObjectMeta: metav1.ObjectMeta{Name: allocation.Name("", addr)},
		Spec: api.IPAllocationSpec{Address: addr.String(), Pool: pool, Phase: api.PhaseAllocated, Owner: o,
			Reservation: keep}}
	for {
		made, err := a.Store.Create(ctx, want)
		taken := (*allocation.TakenError)(nil)
		if errors.As(err, &taken) {
			made = taken.Holder
			switch {
			case holds(made, o):
				err = nil
			case made.Spec.Pool == pool && (unused(made) || reservedFor(made, keep)):
				made.Spec = want.Spec
				made, err = a.Store.Update(ctx, made)
			case unused(made): // of another pool that has the address too
				if err = a.Store.Delete(ctx, made); err == nil {
					continue
				}
			}
		}
		if errors.Is(err, allocation.ErrConflict) || errors.Is(err, allocation.ErrNotFound) {
			continue
		}
		if err == nil {
			a.held.add(made)
		}
		return err
	}
}

// reservedFor tells that nobody has the address, which is kept for the same pod.
func reservedFor(a api.IPAllocation, keep *api.AllocationReservation) bool {
	r := a.Spec.Reservation
	return a.Spec.Phase == api.PhaseReserved && r != nil && keep != nil && r.Same(*keep)
}
