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

// conflictPeriod is how long an address is left alone that somebody on the wire
// uses. Then whoever needs it asks again.
const conflictPeriod = 5 * time.Minute

// try takes one address and asks the wire. early takes it also while it cools and
// while somebody on the wire was seen to use it. Errors are *heldError, after which
// the next address may be tried, and others.
func (a *Allocator) try(
	ctx context.Context, p pool.Pool, addr netip.Addr, r Request, early bool) (given, error) {
	g := given{Address: address(p, addr), anew: true, allocation: api.IPAllocation{
		ObjectMeta: metav1.ObjectMeta{Name: allocation.Name(p.Scope, addr)},
		Spec: api.IPAllocationSpec{Address: addr.String(), Pool: p.Name, Phase: api.PhaseAllocated, Owner: r.Owner,
			Reservation: r.Keep}}}
	made, err := a.create(ctx, g.allocation, early)
	if err != nil {
		var held *heldError
		if !errors.As(err, &held) {
			// Who knows whether it was made.
			a.held.doubt(r.Owner)
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

// create makes an allocation, in the place of one that has had its time.
func (a *Allocator) create(ctx context.Context, want api.IPAllocation, early bool) (api.IPAllocation, error) {
	for {
		made, err := a.Store.Create(ctx, want)
		var taken *allocation.TakenError
		if !errors.As(err, &taken) {
			return made, err
		}
		holder := taken.Holder
		if holds(holder, want.Spec.Owner) {
			return holder, nil // made by a call whose answer got lost
		}
		if !Over(holder, time.Now()) && !(early && unused(holder)) {
			return api.IPAllocation{}, &heldError{holder}
		}
		switch err := a.Store.Delete(ctx, holder); {
		case errors.Is(err, allocation.ErrConflict), errors.Is(err, allocation.ErrNotFound), err == nil:
		default:
			return api.IPAllocation{}, err
		}
	}
}

// Over tells whether the time of an allocation is over that is nobody's any more:
// whoever needs the address may delete it. A mark for longer than marks are made was
// made by a clock that was ahead, maybe by years.
func Over(h api.IPAllocation, now time.Time) bool {
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

// unused tells that no pod of ours has the address.
func unused(h api.IPAllocation) bool {
	return h.Spec.Phase == api.PhaseCooling || h.Spec.Phase == api.PhaseConflict
}

// heldError says that an address is not to be had.
type heldError struct{ holder api.IPAllocation }

func (e *heldError) Error() string { return (&allocation.TakenError{Holder: e.holder}).Error() }

// probe asks the wire about an address that was just taken. If somebody answers,
// the allocation becomes a mark for all nodes, and the error is a *heldError. Where the
// address was kept, and its pod of before answers, it stays kept.
func (a *Allocator) probe(ctx context.Context, g given) error {
	if a.Probe == nil {
		return nil
	}
	who, found, err := a.Probe(ctx, g.Address)
	if err != nil {
		return errors.Join(err, a.undo(ctx, []given{g}))
	}
	if !found {
		return nil
	}
	if g.kept && (who == g.MAC || a.MAC != nil && who == a.MAC(g.Address)) {
		return errors.Join(&AnswersError{Address: g.Prefix.Addr(), MAC: who, Keep: *g.allocation.Spec.Reservation},
			a.undo(ctx, []given{g}))
	}
	mark, until := g.allocation, metav1.NewMicroTime(time.Now().Add(conflictPeriod))
	mark.Spec.Phase, mark.Spec.Until, mark.Spec.MAC = api.PhaseConflict, &until, who.String()
	mark.Spec.Owner, mark.Spec.Reservation = api.AllocationOwner{}, nil
	mark, err = a.Store.Update(ctx, mark)
	if err != nil {
		return errors.Join(err, a.undo(ctx, []given{g}))
	}
	a.Log.Info("address conflict: a host outside of the cluster uses the address", "address", g.Prefix.Addr(), "pool", g.Pool, "vlan", g.VLAN, "mac", who)
	return &heldError{mark}
}
