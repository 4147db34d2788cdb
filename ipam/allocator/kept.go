package allocator

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/internal/netaddr"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/ipam/pool"
)

// look reads what is kept for r.Keep already. Where another owner has some of it there
// is nothing to give: nobody else's address would be the right one.
func (a *Allocator) look(ctx context.Context, r *Request) error {
	if r.Keep == nil {
		return nil
	}
	list, err := a.Store.List(ctx, allocation.For(*r.Keep))
	if err != nil {
		return fmt.Errorf("listing the reservations of %s: %w", r.Keep, err)
	}
	allocation.Standing(list)
	if err := elsewhere(list, r.Owner); err != nil {
		return err
	}
	r.kept = list
	return r.readMAC()
}

// elsewhere is a *StickyError if another owner has one of list.
func elsewhere(list []api.IPAllocation, o api.AllocationOwner) error {
	for _, h := range list {
		if h.Spec.Phase == api.PhaseAllocated && !holds(h, o) {
			return &StickyError{Holder: h, Pod: o}
		}
	}
	return nil
}

// readMAC finds the MAC to keep, if one is: the one on record is stronger.
func (r *Request) readMAC() error {
	if r.Keep.MAC == "" {
		return nil
	}
	keep := *r.Keep
	for _, h := range r.kept {
		if h.Spec.Reservation.MAC != "" {
			keep.MAC = h.Spec.Reservation.MAC
			break
		}
	}
	mac, err := api.ParseMAC(keep.MAC)
	if err == nil && (mac[0]&1 == 1 || mac == api.MAC{}) {
		err = fmt.Errorf("%s is not a unicast MAC address", keep.MAC)
	}
	if err != nil {
		return fmt.Errorf("spec.reservation.mac of the IPAllocation reserved for %s: %w. Correct it, or remove it", keep, err)
	}
	r.Keep, r.mac = &keep, mac
	return nil
}

// keptOf gives the address of a family that is kept, if there is one that fits.
func (a *Allocator) keptOf(
	ctx context.Context, f int, pools []pool.Pool, want netip.Addr, r Request) (given, bool, error) {
	for _, h := range r.kept {
		scope, addr, err := allocation.ParseName(h.Name)
		if err != nil || netaddr.Family(addr) != f || want.IsValid() && addr != want {
			continue
		}
		i := slices.IndexFunc(pools, func(p pool.Pool) bool {
			return p.Name == h.Spec.Pool && p.Scope == scope && p.Contains(addr)
		})
		if i < 0 {
			continue
		}
		g, err := a.takeKept(ctx, given{Address: address(pools[i], addr), allocation: h, anew: true, kept: true}, r)
		var stranger *heldError
		if !errors.As(err, &stranger) {
			return g, err == nil, err
		}
	}
	return given{}, false, nil
}

// takeKept gives the owner an address that is kept for it. The error is a *heldError
// where a stranger on the wire has it: then it is marked, and kept no longer.
func (a *Allocator) takeKept(ctx context.Context, g given, r Request) (given, error) {
	g.MAC = r.mac
	want := g.allocation
	want.Spec.Phase, want.Spec.Owner, want.Spec.Reservation = api.PhaseAllocated, r.Owner, r.Keep
	made, err := a.Store.Update(ctx, want)
	if changed(err) {
		return given{}, err
	}
	if g.allocation = want; err != nil {
		a.held.doubt(r.Owner) // who knows whether it was done
		return given{}, errors.Join(err, a.undo(ctx, []given{g}))
	}
	g.allocation = made
	return g, a.probe(ctx, g)
}

// settle sees to it that nothing but got is kept for r.Keep. Two that give an address
// at the same time both look after it: who sees the other's gives its own up.
// What nobody has is freed.
func (a *Allocator) settle(ctx context.Context, r Request, got []given) error {
	if r.Keep == nil || !slices.ContainsFunc(got, func(g given) bool { return g.anew }) {
		return nil
	}
	list, err := a.Store.List(ctx, allocation.For(*r.Keep))
	if err == nil {
		err = elsewhere(list, r.Owner)
	}
	if err != nil {
		return err
	}
	for _, h := range list {
		if h.Spec.Phase != api.PhaseReserved {
			continue
		}
		if err := allocation.Unreserve(ctx, a.Store, h, a.Cooling); err != nil {
			return err
		}
		a.Log.Info("released reservation: its pod has another address", "address", h.Spec.Address, "pool", h.Spec.Pool,
			"owner", r.Keep.String())
	}
	return nil
}
