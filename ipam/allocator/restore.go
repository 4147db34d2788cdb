package allocator

import (
	"context"
	"errors"
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
)

// Restore recreates the lost allocation of an address that a running pod has. scope is the isolated network of the
// pool, empty if it is in none. The address may have been marked as a conflict meanwhile, because the pod replies on
// the wire. keep says for whom it is reserved, nil for no reservation; it may have been reserved again already. The
// error is an *allocation.TakenError if another owner has it. lost is false if the owner has the allocation already.
func (a *Allocator) Restore(ctx context.Context, o api.AllocationOwner, pool, scope string, addr netip.Addr,
	keep *api.AllocationReservation) (lost bool, err error) {
	o.Node = a.Node
	want := api.IPAllocation{ObjectMeta: metav1.ObjectMeta{Name: allocation.Name(scope, addr)},
		Spec: api.IPAllocationSpec{Address: addr.String(), Pool: pool, Phase: api.PhaseAllocated, Owner: o,
			Reservation: keep}}
	for {
		lost = true
		made, err := a.Store.Create(ctx, want)
		taken := (*allocation.TakenError)(nil)
		if errors.As(err, &taken) {
			made = taken.Holder
			switch {
			case holds(made, o):
				lost, err = false, nil
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
		if err != nil {
			return false, err
		}
		a.held.add(made)
		return lost, nil
	}
}

// reservedFor reports whether the address is reserved for the same pod and has no owner.
func reservedFor(a api.IPAllocation, keep *api.AllocationReservation) bool {
	r := a.Spec.Reservation
	return a.Spec.Phase == api.PhaseReserved && r != nil && keep != nil && r.Same(*keep)
}
