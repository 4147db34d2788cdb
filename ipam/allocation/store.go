// Package allocation keeps who holds which address: one IPAllocation for each
// address that is held, in the Kubernetes API or in a directory. Every
// IPAllocation is ours, and in the directory every file whose name is that of one.
//
// Whoever creates the object of an address has the address. There are no locks
// and there is no memory here: two agents, or one that was killed and its
// successor, can't both have it.
package allocation

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/fairlead-cni/fairlead/api"
)

// Store is where allocations are kept. The two there are, Kubernetes and
// Directory, give the same answers. Methods may be called at the same time. An
// error that is none of this package's may come after the change was made: look
// again.
type Store interface {
	// Create takes the address of a.Spec under the name that a has. The error is
	// a *TakenError if it is held. The result has UID and resourceVersion.
	Create(ctx context.Context, a api.IPAllocation) (api.IPAllocation, error)
	// Get returns the allocation of that name, or ErrNotFound.
	Get(ctx context.Context, name string) (api.IPAllocation, error)
	// List returns all allocations that fit f, sorted by name. All that was
	// written before the call is in it.
	List(ctx context.Context, f Filter) ([]api.IPAllocation, error)
	// Update replaces a.Spec, but for address and pool, if UID and resourceVersion
	// are still those of a. Otherwise the error is ErrConflict, or ErrNotFound.
	Update(ctx context.Context, a api.IPAllocation) (api.IPAllocation, error)
	// Delete frees the address if UID and resourceVersion are still those of a.
	// Otherwise the error is ErrConflict, or ErrNotFound.
	Delete(ctx context.Context, a api.IPAllocation) error
}

// Filter selects allocations. Empty fields select all.
type Filter struct {
	Node, Pool string
	// UID is the reservation's, and Ordinal its ordinal in digits.
	UID, Ordinal string
}

// For selects what is reserved for one pod.
func For(r api.AllocationReservation) Filter {
	return Filter{UID: r.UID, Ordinal: strconv.Itoa(r.Ordinal)}
}

// ErrNotFound says that nobody holds the address.
var ErrNotFound = errors.New("address is not allocated")

// ErrConflict says that the allocation is another one by now, or was changed.
var ErrConflict = errors.New("the allocation was changed concurrently")

// ErrNoKind says that the cluster knows no IPAllocations, so nobody holds one.
var ErrNoKind = errors.New("the cluster has no such resource")

// TakenError says that an address is held.
type TakenError struct{ Holder api.IPAllocation }

func (e *TakenError) Error() string {
	if r := e.Holder.Spec.Reservation; r != nil && e.Holder.Spec.Phase == api.PhaseReserved {
		return fmt.Sprintf("%s is reserved for %s (pool %s)", e.Holder.Spec.Address, r, e.Holder.Spec.Pool)
	}
	return fmt.Sprintf("%s is allocated to %s (%s, pool %s)", e.Holder.Spec.Address, e.Holder.Spec.Owner,
		e.Holder.Spec.Phase, e.Holder.Spec.Pool)
}
