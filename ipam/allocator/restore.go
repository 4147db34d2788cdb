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
// answers on the wire. The error is an *allocation.TakenError if another owner has it.
func (a *Allocator) Restore(ctx context.Context, o api.AllocationOwner, pool string, addr netip.Addr) error {
	o.Node = a.Node
	want := api.IPAllocation{ObjectMeta: metav1.ObjectMeta{Name: allocation.Name("", addr)},
		Spec: api.IPAllocationSpec{Address: addr.String(), Pool: pool, Phase: api.PhaseAllocated, Owner: o}}
	for {
		made, err := a.Store.Create(ctx, want)
		taken := (*allocation.TakenError)(nil)
		if errors.As(err, &taken) {
			made = taken.Holder
			switch {
			case holds(made, o):
				err = nil
			case unused(made) && made.Spec.Pool == pool:
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
