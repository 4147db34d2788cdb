package allocator

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/ipam/pool"
)

// Addresses probed in advance are allocated next.
func TestUpcoming(t *testing.T) {
	s := directory(t)
	a := newAllocator(s)
	p := makePool(t, "v4", "10.2.0.1", "10.2.0.99", 7)
	for i := range 60 {
		next := a.Upcoming(p, 3)
		if len(next) != 3 || next[0].VLAN != 7 {
			t.Fatalf("upcoming are %+v, want 3 of VLAN 7", next)
		}
		got := allocate(t, a, string(rune('a'+i)), p)
		if next[0].Prefix.String() != got {
			t.Errorf("upcoming was %s, given was %s", next[0].Prefix, got)
		}
	}
	if small := a.Upcoming(makePool(t, "small", "10.2.1.1", "10.2.1.2", 7), 3); len(small) != 2 {
		t.Errorf("of two addresses %+v are upcoming", small)
	}
	if none := a.Upcoming(p, 0); len(none) != 0 {
		t.Errorf("none are asked for, and upcoming are %+v", none)
	}
}

// The lost allocation of a running pod is restored, and its DEL releases the address.
func TestRestore(t *testing.T) {
	s := directory(t)
	a := newAllocator(s)
	addr := netip.MustParseAddr("10.2.0.7")
	p := makePool(t, "v4", "10.2.0.7", "10.2.0.8", 0)
	restore := func(name string) error {
		_, err := a.Restore(t.Context(), ownerNamed(name), "v4", "", addr, nil)
		return err
	}
	for what, spoil := range map[string]func(h api.IPAllocation) error{
		"lost": func(h api.IPAllocation) error { return s.Delete(t.Context(), h) },
		"marked": func(h api.IPAllocation) error {
			h.Spec.Phase, h.Spec.Owner = api.PhaseConflict, api.AllocationOwner{}
			_, err := s.Update(t.Context(), h)
			return err
		},
		"marked by a pool that overlaps": func(h api.IPAllocation) error {
			mark := h
			mark.Spec.Pool, mark.Spec.Phase, mark.Spec.Owner = "other", api.PhaseConflict, api.AllocationOwner{}
			if err := s.Delete(t.Context(), h); err != nil {
				return err
			}
			_, err := s.Create(t.Context(), mark)
			return err
		},
		"there": func(api.IPAllocation) error { return nil },
	} {
		got, err := a.Allocate(t.Context(), Request{Pools: []pool.Pool{p}, PodIPs: []netip.Addr{addr}, Owner: ownerNamed("a")})
		if err != nil {
			t.Fatal(what, got, err)
		}
		held, err := a.Held(t.Context())
		if err != nil || len(held) != 1 {
			t.Fatal(what, held, err)
		}
		if err := spoil(held[0]); err != nil {
			t.Fatal(err)
		}
		if err := restore("a"); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if now := phases(t, s); now != "10.2.0.7 Allocated a" {
			t.Errorf("%s: %s", what, now)
		}
		if err := restore("b"); !errors.As(err, new(*allocation.TakenError)) {
			t.Errorf("%s: another owner's address is restored: %v", what, err)
		}
		release(t, a, "a")
		list, err := s.List(t.Context(), allocation.Filter{})
		holds := func(h api.IPAllocation) bool { return h.Spec.Phase == api.PhaseAllocated }
		if err != nil || slices.ContainsFunc(list, holds) {
			t.Errorf("%s: after the release %s", what, phases(t, s))
		}
		for _, h := range list {
			if err := s.Delete(t.Context(), h); err != nil {
				t.Fatal(err)
			}
		}
	}
}
