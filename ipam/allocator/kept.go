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

// readReservations reads the existing reservations for r.Keep. If another owner has one of them, Allocate fails: no
// other address is the right one.
func (a *Allocator) readReservations(ctx context.Context, r *Request) error {
	if r.Keep == nil {
		return nil
	}
	list, err := a.Store.List(ctx, allocation.For(*r.Keep))
	if err != nil {
		return fmt.Errorf("listing the reservations of %s: %w", r.Keep, err)
	}
	allocation.Standing(list)
	if err := checkHolder(list, r.Owner); err != nil {
		return err
	}
	r.reserved = list
	return r.readMAC()
}

// checkHolder returns a *StickyError if another owner has an address of list.
func checkHolder(list []api.IPAllocation, o api.AllocationOwner) error {
	for _, h := range list {
		if h.Spec.Phase == api.PhaseAllocated && !holds(h, o) {
			return &StickyError{Holder: h, Pod: o}
		}
	}
	return nil
}

// readMAC determines the MAC to reserve, if any: one on record takes precedence.
func (r *Request) readMAC() error {
	if r.Keep.MAC == "" {
		return nil
	}
	keep := *r.Keep
	for _, h := range r.reserved {
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

// tryReserved allocates the reserved address of a family, if there is one that fits.
func (a *Allocator) tryReserved(
	ctx context.Context, f int, pools []pool.Pool, want netip.Addr, r Request) (given, bool, error) {
	for _, h := range r.reserved {
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
		g := given{Address: address(pools[i], addr), allocation: h, created: true, reserved: true}
		g, err = a.allocateReserved(ctx, g, r)
		var inUse *heldError
		if !errors.As(err, &inUse) {
			return g, err == nil, err
		}
	}
	return given{}, false, nil
}

// allocateReserved allocates an address that is reserved for the owner. The error is a *heldError if another host uses
// it on the wire: then it is marked as a conflict, and its reservation ends.
func (a *Allocator) allocateReserved(ctx context.Context, g given, r Request) (given, error) {
	g.MAC = r.mac
	want := g.allocation
	want.Spec.Phase, want.Spec.Owner, want.Spec.Reservation = api.PhaseAllocated, r.Owner, r.Keep
	made, err := a.Store.Update(ctx, want)
	if changed(err) {
		return given{}, err
	}
	if g.allocation = want; err != nil {
		a.held.markUncertain(r.Owner) // it is unknown whether the update took effect
		return given{}, errors.Join(err, a.undo(ctx, []given{g}))
	}
	g.allocation = made
	return g, a.probe(ctx, g)
}

// replaceReservations makes got the only reservations for r.Keep. Of two concurrent Allocates that both do this, the
// one that sees the other's releases its own. Reservations that no pod has are released.
func (a *Allocator) replaceReservations(ctx context.Context, r Request, got []given) error {
	if r.Keep == nil || !slices.ContainsFunc(got, func(g given) bool { return g.created }) {
		return nil
	}
	list, err := a.Store.List(ctx, allocation.For(*r.Keep))
	if err == nil {
		err = checkHolder(list, r.Owner)
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
		if a.Cooling == 0 {
			a.full.forget(h.Spec.Pool)
		}
		a.Log.Info("released reservation: its pod has another address", "address", h.Spec.Address, "pool", h.Spec.Pool,
			"owner", r.Keep.String())
	}
	return nil
}
