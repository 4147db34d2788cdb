// Package allocation records which addresses are in use: one IPAllocation per address, in the Kubernetes API or in a
// directory. Fairlead owns every IPAllocation, and in the directory every file with the name of one.
//
// Creating the object of an address allocates it. There are no locks and there is no in-memory state: two agents, or an
// agent that was killed and its successor, cannot both have the address.
package allocation

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/fairlead-cni/fairlead/api"
)

// Store is where allocations are stored. The implementations, Kubernetes and Directory, behave the same. Methods may be
// called concurrently. After an error that is not one of this package's, the change may have been made nevertheless:
// read again.
type Store interface {
	// Create allocates the address of a.Spec under a's name. The error is a *TakenError if it is in use. The result has
	// UID and resourceVersion.
	Create(ctx context.Context, a api.IPAllocation) (api.IPAllocation, error)
	// Get returns the allocation of that name, or ErrNotFound.
	Get(ctx context.Context, name string) (api.IPAllocation, error)
	// List returns all allocations that match f, sorted by name. It includes every write that completed before the
	// call.
	List(ctx context.Context, f Filter) ([]api.IPAllocation, error)
	// Update replaces a.Spec, except address and pool, if UID and resourceVersion are still those of a. Otherwise the
	// error is ErrConflict or ErrNotFound.
	Update(ctx context.Context, a api.IPAllocation) (api.IPAllocation, error)
	// Delete releases the address if UID and resourceVersion are still those of a. Otherwise the error is ErrConflict
	// or ErrNotFound.
	Delete(ctx context.Context, a api.IPAllocation) error
}

// Filter selects allocations. Empty fields select all.
type Filter struct {
	Node, Pool string
	// UID is the reservation's, and Ordinal its ordinal in decimal.
	UID, Ordinal string
	// Unused selects only those whose address no pod has: cooling, reserved, or marked as a conflict.
	Unused bool
}

// For selects the reservations for one pod.
func For(r api.AllocationReservation) Filter {
	return Filter{UID: r.UID, Ordinal: strconv.Itoa(r.Ordinal)}
}

// ErrNotFound: the address is not allocated.
var ErrNotFound = errors.New("address is not allocated")

// ErrConflict: the allocation was replaced or changed since it was read.
var ErrConflict = errors.New("the allocation was changed concurrently")

// ErrNoKind: the cluster does not serve IPAllocations, so no address is allocated.
var ErrNoKind = errors.New("the cluster has no such resource")

// TakenError: the address is in use.
type TakenError struct{ Holder api.IPAllocation }

func (e *TakenError) Error() string {
	if r := e.Holder.Spec.Reservation; r != nil && e.Holder.Spec.Phase == api.PhaseReserved {
		return fmt.Sprintf("%s is reserved for %s (pool %s)", e.Holder.Spec.Address, r, e.Holder.Spec.Pool)
	}
	return fmt.Sprintf("%s is allocated to %s (%s, pool %s)", e.Holder.Spec.Address, e.Holder.Spec.Owner,
		e.Holder.Spec.Phase, e.Holder.Spec.Pool)
}
