package allocation

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/api"
)

// Free ends that a.Spec.Owner holds the address, in one write: an address with a
// reservation goes back to it, another one cools for that long and keeps its owner
// on record; where cooling is 0 it is deleted. The errors are those of Update and
// Delete: nothing was done if somebody has changed the allocation since a was read.
func Free(ctx context.Context, s Store, a api.IPAllocation, cooling time.Duration) error {
	switch {
	case a.Spec.Reservation != nil:
		a.Spec.Phase, a.Spec.Until, a.Spec.Owner = api.PhaseReserved, nil, api.AllocationOwner{}
	case cooling == 0:
		return s.Delete(ctx, a)
	default:
		until := metav1.NewMicroTime(time.Now().Add(cooling))
		a.Spec.Phase, a.Spec.Until = api.PhaseCooling, &until
	}
	_, err := s.Update(ctx, a)
	return err
}
