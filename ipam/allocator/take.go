package allocator

import (
	"context"
	"errors"
	"net/netip"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/ipam/pool"
)

// conflictPeriod is how long an address that another host uses is not tried. Then it is probed again when it is needed.
const conflictPeriod = 5 * time.Minute

// try allocates one address and probes it. early accepts an address that is cooling or marked as a conflict. After a
// *heldError the next address may be tried; other errors are final.
func (a *Allocator) try(
	ctx context.Context, p pool.Pool, addr netip.Addr, r Request, early bool) (given, error) {
	g := given{Address: address(p, addr), created: true, allocation: api.IPAllocation{
		ObjectMeta: metav1.ObjectMeta{Name: allocation.Name(p.Scope, addr)},
		Spec: api.IPAllocationSpec{Address: addr.String(), Pool: p.Name, Phase: api.PhaseAllocated, Owner: r.Owner,
			Reservation: r.Keep}}}
	made, err := a.create(ctx, g.allocation, early)
	if err != nil {
		var held *heldError
		if !errors.As(err, &held) {
			// It is unknown whether it was created.
			a.held.markUncertain(r.Owner)
			err = errors.Join(err, a.undo(ctx, []given{g}))
		}
		return given{}, err
	}
	g.allocation = made
	if err := a.probe(ctx, g); err != nil {
		return given{}, err
	}
	return g, nil
}

// create creates an allocation, replacing one that has expired. The error is a *heldError also if a lost allocation was
// for a living container of this node.
func (a *Allocator) create(ctx context.Context, want api.IPAllocation, early bool) (api.IPAllocation, error) {
	if a.InUse != nil {
		holder, err := a.InUse(ctx, want.Name)
		if holder != nil && !holds(*holder, want.Spec.Owner) {
			return api.IPAllocation{}, errors.Join(&heldError{*holder}, err)
		}
	}
	for {
		made, err := a.Store.Create(ctx, want)
		var taken *allocation.TakenError
		if !errors.As(err, &taken) {
			return made, err
		}
		holder := taken.Holder
		if holds(holder, want.Spec.Owner) {
			return holder, nil // created by a call whose response was lost
		}
		if !Expired(holder, time.Now()) && !(early && unused(holder)) {
			return api.IPAllocation{}, &heldError{holder}
		}
		switch err := a.Store.Delete(ctx, holder); {
		case errors.Is(err, allocation.ErrConflict), errors.Is(err, allocation.ErrNotFound), err == nil:
		default:
			return api.IPAllocation{}, err
		}
	}
}

// Expired reports whether an allocation without an owner has expired, so that it may be deleted when the address is
// needed. A mark with more time left than marks get was made by a fast clock, maybe years ahead.
func Expired(h api.IPAllocation, now time.Time) bool {
	if !unused(h) || h.Spec.Until == nil {
		return unused(h)
	}
	most := 2 * conflictPeriod
	if h.Spec.Phase == api.PhaseCooling {
		most = 2 * api.MaxCoolingPeriod
	}
	left := h.Spec.Until.Sub(now)
	return left <= 0 || left > most
}

// unused reports whether no pod of this cluster has the address.
func unused(h api.IPAllocation) bool {
	return h.Spec.Phase == api.PhaseCooling || h.Spec.Phase == api.PhaseConflict
}

// heldError: the address is not available.
type heldError struct{ holder api.IPAllocation }

func (e *heldError) Error() string { return (&allocation.TakenError{Holder: e.holder}).Error() }

// probe probes an address that was just allocated. If another host replies, the allocation becomes a conflict mark for
// all nodes, and the error is a *heldError. If the address was reserved, and its previous pod replies, it stays
// reserved.
func (a *Allocator) probe(ctx context.Context, g given) error {
	if a.Probe == nil {
		return nil
	}
	mac, found, err := a.Probe(ctx, g.Address)
	if err != nil {
		return errors.Join(err, a.undo(ctx, []given{g}))
	}
	if !found {
		return nil
	}
	if g.reserved && (mac == g.MAC || a.MAC != nil && mac == a.MAC(g.Address)) {
		return errors.Join(&StillInUseError{Address: g.Prefix.Addr(), MAC: mac, Keep: *g.allocation.Spec.Reservation},
			a.undo(ctx, []given{g}))
	}
	mark, until := g.allocation, api.NewMicroTime(time.Now().Add(conflictPeriod))
	mark.Spec.Phase, mark.Spec.Until, mark.Spec.MAC = api.PhaseConflict, &until, mac.String()
	mark.Spec.Owner, mark.Spec.Reservation = api.AllocationOwner{}, nil
	mark, err = a.Store.Update(ctx, mark)
	if err != nil {
		return errors.Join(err, a.undo(ctx, []given{g}))
	}
	a.Log.Info("address conflict: a host outside of the cluster uses the address", "address", g.Prefix.Addr(), "pool", g.Pool, "vlan", g.VLAN, "mac", mac)
	return &heldError{mark}
}
