package allocator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
)

// Release releases what the owner (by ContainerID, IfName, Network and IPAMOnly) holds. It succeeds if that is nothing.
// The addresses cool from then on.
func (a *Allocator) Release(ctx context.Context, o api.AllocationOwner) error {
	o.Node = a.Node
	list, err := a.held.of(ctx, a.Store, o)
	if err != nil {
		return err
	}
	var errs []error
	for _, h := range list {
		if err := a.releaseOne(ctx, h, o); err != nil {
			errs = append(errs, fmt.Errorf("releasing %s of pool %s: %w", h.Spec.Address, h.Spec.Pool, err))
			continue
		}
		a.forget(h)
		a.Log.Info("released address", "address", h.Spec.Address, "pool", h.Spec.Pool, "owner", h.Spec.Owner.String())
	}
	return errors.Join(errs...)
}

// forget notes that an allocation was released. One that is cooling is found in a full pool, too.
func (a *Allocator) forget(h api.IPAllocation) {
	a.held.remove(h)
	if a.Cooling == 0 {
		a.full.forget(h.Spec.Pool)
	}
}

// releaseOne releases an address of o, in one write unless the allocation has changed since.
func (a *Allocator) releaseOne(ctx context.Context, h api.IPAllocation, o api.AllocationOwner) error {
	for {
		err := allocation.Free(ctx, a.Store, h, a.Cooling)
		if !errors.Is(err, allocation.ErrConflict) {
			if errors.Is(err, allocation.ErrNotFound) {
				return nil
			}
			return err
		}
		now, err := a.Store.Get(ctx, h.Name)
		switch {
		case errors.Is(err, allocation.ErrNotFound):
			return nil
		case err != nil:
			return err
		case !holds(now, o):
			return nil
		}
		h = now
	}
}

// Held returns what owners on this node hold, as the store has it now. Release can release all of it.
func (a *Allocator) Held(ctx context.Context) ([]api.IPAllocation, error) {
	if err := a.held.load(ctx, a.Store, a.Node); err != nil {
		return nil, err
	}
	before := a.held.all()
	list, err := a.Store.List(ctx, allocation.Filter{Node: a.Node})
	if err != nil {
		return nil, err
	}
	list = slices.DeleteFunc(list, func(h api.IPAllocation) bool { return h.Spec.Phase != api.PhaseAllocated })
	a.held.compare(before, list)
	return list, nil
}

// Known returns what owners on this node hold as far as is known here. It sends no request.
func (a *Allocator) Known() []api.IPAllocation { return a.held.all() }

// InDoubt reports whether a response of the store was lost less than d ago: the store may have more than Known.
func (a *Allocator) InDoubt(d time.Duration) bool { return a.held.inDoubt(d) }

// ReleaseOrphaned releases one address whose owner is gone, if the allocation has not changed since h was read. The
// address cools from then on.
func (a *Allocator) ReleaseOrphaned(ctx context.Context, h api.IPAllocation) (done bool, err error) {
	err = allocation.Free(ctx, a.Store, h, a.Cooling)
	if errors.Is(err, allocation.ErrConflict) || errors.Is(err, allocation.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("releasing %s of pool %s: %w", h.Spec.Address, h.Spec.Pool, err)
	}
	a.forget(h)
	return true, nil
}
