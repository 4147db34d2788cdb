package allocation

import (
	"context"
	"time"

	"github.com/fairlead-cni/fairlead/api"
)

// Free releases the address from a.Spec.Owner in one write: a reserved address returns to its reservation; any other
// cools for the given time and keeps its owner on record, or is deleted if cooling is 0. Errors are those of Update and
// Delete: nothing was done if the allocation has changed since a was read.
func Free(ctx context.Context, s Store, a api.IPAllocation, cooling time.Duration) error {
	switch {
	case a.Spec.Reservation != nil:
		a.Spec.Phase, a.Spec.Until, a.Spec.Owner = api.PhaseReserved, nil, api.AllocationOwner{}
	case cooling == 0:
		return s.Delete(ctx, a)
	default:
		until := api.NewMicroTime(time.Now().Add(cooling))
		a.Spec.Phase, a.Spec.Until = api.PhaseCooling, &until
	}
	_, err := s.Update(ctx, a)
	return err
}
