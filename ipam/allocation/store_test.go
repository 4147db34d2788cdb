package allocation

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/api"
)

func TestName(t *testing.T) {
	for want, c := range map[string]struct{ scope, addr string }{
		"10.2.0.12":     {"", "10.2.0.12"},
		"lab.10.2.0.12": {"lab", "10.2.0.12"},
		"10.10.2.0.12":  {"10", "10.2.0.12"},
		"fd00-0000-0000-0000-0000-0000-0000-00ab":     {"", "fd00::ab"},
		"lab.fd00-0000-0000-0000-0000-0000-0000-00ab": {"lab", "fd00::ab"},
		"b-2.0000-0000-0000-0000-0000-0000-0000-0001": {"b-2", "::1"},
	} {
		addr := netip.MustParseAddr(c.addr)
		if got := Name(c.scope, addr); got != want {
			t.Errorf("Name(%q, %s) = %s, want %s", c.scope, addr, got, want)
		}
		if scope, got, err := ParseName(want); scope != c.scope || got != addr || err != nil {
			t.Errorf("ParseName(%s) = %q, %s, %v", want, scope, got, err)
		}
	}
	for _, bad := range []string{"", "10.2.0", "10.2.0.012", "a.b.10.2.0.1", "fd00--1", "FD00-0000-0000-0000-0000-0000-0000-0001",
		".new", "10.2.0.1.", "lab."} {
		if scope, addr, err := ParseName(bad); err == nil {
			t.Errorf("ParseName(%q) = %q, %s", bad, scope, addr)
		}
	}
}

func allocationOf(addr, pool, node, container string) api.IPAllocation {
	return api.IPAllocation{ObjectMeta: metav1.ObjectMeta{Name: Name("", netip.MustParseAddr(addr))},
		Spec: api.IPAllocationSpec{Address: addr, Pool: pool, Phase: api.PhaseAllocated,
			Owner: api.AllocationOwner{ContainerID: container, IfName: "eth0", Network: "net", Node: node}}}
}

// checkStore tests what every Store must do. The store is empty.
func checkStore(t *testing.T, s Store) {
	t.Cleanup(func() { // so that the next test finds it empty
		list, err := s.List(context.Background(), Filter{})
		for _, a := range list {
			err = errors.Join(err, s.Delete(context.Background(), a))
		}
		if err != nil {
			t.Error(err)
		}
	})
	t.Run("one holder", func(t *testing.T) { checkOneHolder(t, s) })
	t.Run("changes", func(t *testing.T) { checkChanges(t, s) })
	t.Run("list", func(t *testing.T) { checkList(t, s) })
	t.Run("race", func(t *testing.T) { checkRace(t, s) })
	t.Run("free", func(t *testing.T) { checkFree(t, s) })
}

func checkOneHolder(t *testing.T, s Store) {
	ctx := t.Context()
	mine := allocationOf("10.2.0.1", "p", "n1", "c1")
	if _, err := s.Get(ctx, mine.Name); !errors.Is(err, ErrNotFound) {
		t.Errorf("Get of a free address: %v", err)
	}
	made, err := s.Create(ctx, mine)
	if err != nil || made.UID == "" || made.ResourceVersion == "" || made.Spec != mine.Spec ||
		time.Since(made.CreationTimestamp.Time) > time.Minute {
		t.Fatalf("Create: %+v, %v", made, err)
	}
	var taken *TakenError
	_, err = s.Create(ctx, allocationOf("10.2.0.1", "q", "n2", "c2"))
	if !errors.As(err, &taken) || taken.Holder.UID != made.UID || taken.Holder.Spec != mine.Spec ||
		err.Error() != "10.2.0.1 is allocated to container c1 on node n1 (Allocated, pool p)" {
		t.Errorf("Create of a held address: %v", err)
	}
	if got, err := s.Get(ctx, mine.Name); err != nil || got.UID != made.UID || got.Spec != mine.Spec {
		t.Errorf("Get: %+v, %v", got, err)
	}
	if err := s.Delete(ctx, made); err != nil {
		t.Fatal(err)
	}
	again, err := s.Create(ctx, mine)
	if err != nil || again.UID == made.UID {
		t.Errorf("Create again: %+v, %v, want another UID than %s", again, err, made.UID)
	}
	if err := s.Delete(ctx, made); !errors.Is(err, ErrConflict) {
		t.Errorf("Delete of one that was deleted and recreated: %v", err)
	}
	made.Spec.Phase = api.PhaseCooling
	if _, err := s.Update(ctx, made); !errors.Is(err, ErrConflict) {
		t.Errorf("Update of one that was deleted and recreated: %v", err)
	}
	if err := s.Delete(ctx, again); err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(ctx, again); !errors.Is(err, ErrNotFound) {
		t.Errorf("Delete of one that is gone: %v", err)
	}
	if _, err := s.Update(ctx, again); !errors.Is(err, ErrNotFound) {
		t.Errorf("Update of one that is gone: %v", err)
	}
}

func checkChanges(t *testing.T, s Store) {
	ctx := t.Context()
	first, err := s.Create(ctx, allocationOf("fd00::1", "p", "n1", "c1"))
	if err != nil {
		t.Fatal(err)
	}
	cooling := first
	until := api.NewMicroTime(time.Now())
	cooling.Spec.Phase, cooling.Spec.Until = api.PhaseCooling, &until
	second, err := s.Update(ctx, cooling)
	if err != nil || second.UID != first.UID || second.ResourceVersion == first.ResourceVersion {
		t.Fatalf("Update: %+v, %v", second, err)
	}
	if _, err := s.Update(ctx, first); !errors.Is(err, ErrConflict) {
		t.Errorf("Update of an old version: %v", err)
	}
	if err := s.Delete(ctx, first); !errors.Is(err, ErrConflict) {
		t.Errorf("Delete of an old version: %v", err)
	}
	got, err := s.Get(ctx, first.Name)
	if err != nil || got.Spec.Phase != api.PhaseCooling || got.ResourceVersion != second.ResourceVersion ||
		got.Spec.Until.Sub(until.Time).Abs() > time.Microsecond {
		t.Errorf("Get: %+v, %v", got, err)
	}
	moved := second
	moved.Spec.Pool = "q"
	if _, err := s.Update(ctx, moved); err == nil || !strings.Contains(err.Error(), "address and pool of an allocation cannot be changed") {
		t.Errorf("Update with another pool: %v", err)
	}
	if err := s.Delete(ctx, second); err != nil {
		t.Error(err)
	}
}

func checkList(t *testing.T, s Store) {
	ctx := t.Context()
	var made []api.IPAllocation
	for _, a := range []api.IPAllocation{allocationOf("10.2.0.3", "p", "n1", "c1"), allocationOf("10.2.0.2", "q", "n1", "c1"),
		allocationOf("10.2.0.1", "p", "n2", "c2")} {
		m, err := s.Create(ctx, a)
		if err != nil {
			t.Fatal(err)
		}
		made = append(made, m)
	}
	made[1].Spec.Phase = api.PhaseCooling
	var err error
	if made[1], err = s.Update(ctx, made[1]); err != nil {
		t.Fatal(err)
	}
	for f, want := range map[Filter]string{
		{}:                        "10.2.0.1 10.2.0.2 10.2.0.3",
		{Node: "n1"}:              "10.2.0.2 10.2.0.3",
		{Pool: "p"}:               "10.2.0.1 10.2.0.3",
		{Node: "n1", Pool: "p"}:   "10.2.0.3",
		{Node: "n"}:               "",
		{Unused: true}:            "10.2.0.2",
		{Pool: "p", Unused: true}: "",
	} {
		list, err := s.List(ctx, f)
		var got []string
		for _, a := range list {
			got = append(got, a.Name)
			if !slices.ContainsFunc(made, func(m api.IPAllocation) bool {
				return m.UID == a.UID && m.ResourceVersion == a.ResourceVersion && m.Spec == a.Spec
			}) {
				t.Errorf("%+v was never made", a)
			}
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("List(%+v) = %v, %v, want %s", f, got, err, want)
		}
	}
	for _, m := range made {
		if err := s.Delete(ctx, m); err != nil {
			t.Error(err)
		}
	}
	if list, err := s.List(ctx, Filter{}); err != nil || len(list) > 0 {
		t.Errorf("at the end: %v, %v", list, err)
	}
}

// Of several concurrent creates, or deletes, of the same address exactly one succeeds.
func checkRace(t *testing.T, s Store) {
	for round := range 5 {
		made := race(func(i int) (api.IPAllocation, error) {
			return s.Create(t.Context(), allocationOf("10.9.0.1", "p", "n", fmt.Sprint(i)))
		}, func(err error) bool { taken := (*TakenError)(nil); return errors.As(err, &taken) }, t)
		if len(made) != 1 {
			t.Fatalf("round %d: %d hold the address: %v", round, len(made), made)
		}
		freed := race(func(int) (api.IPAllocation, error) { return made[0], s.Delete(t.Context(), made[0]) },
			func(err error) bool { return errors.Is(err, ErrNotFound) || errors.Is(err, ErrConflict) }, t)
		if len(freed) != 1 {
			t.Fatalf("round %d: %d freed the address", round, len(freed))
		}
	}
}

// race runs do ten times concurrently and returns the results of those without an error; lost reports whether an error
// is the expected one of the others.
func race(do func(int) (api.IPAllocation, error), lost func(error) bool, t *testing.T) (won []api.IPAllocation) {
	var mu sync.Mutex
	var all sync.WaitGroup
	for i := range 10 {
		all.Go(func() {
			a, err := do(i)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won = append(won, a)
			} else if !lost(err) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	return won
}

func checkFree(t *testing.T, s Store) {
	ctx := t.Context()
	reserved := allocationOf("10.2.9.3", "p", "n1", "c1")
	reserved.Spec.Reservation = &api.AllocationReservation{Kind: "StatefulSet", Namespace: "a", Name: "db", UID: "u", Ordinal: 3}
	for _, c := range []struct {
		a       api.IPAllocation
		cooling time.Duration
		phase   api.AllocationPhase
		owner   string
	}{
		{allocationOf("10.2.9.1", "p", "n1", "c1"), time.Minute, api.PhaseCooling, "c1"},
		{allocationOf("10.2.9.2", "p", "n1", "c1"), 0, "", ""},
		{reserved, time.Minute, api.PhaseReserved, ""},
	} {
		made, err := s.Create(ctx, c.a)
		if err != nil {
			t.Fatal(err)
		}
		old := made
		if made, err = s.Update(ctx, made); err != nil {
			t.Fatal(err)
		}
		if old.ResourceVersion != made.ResourceVersion {
			if err := Free(ctx, s, old, c.cooling); !errors.Is(err, ErrConflict) {
				t.Errorf("%s: freeing what was changed since: %v", c.a.Name, err)
			}
		}
		if err := Free(ctx, s, made, c.cooling); err != nil {
			t.Errorf("%s: %v", c.a.Name, err)
		}
		got, err := s.Get(ctx, c.a.Name)
		if c.phase == "" {
			if !errors.Is(err, ErrNotFound) {
				t.Errorf("%s: still there: %v %v", c.a.Name, got, err)
			}
			continue
		}
		if err != nil || got.Spec.Phase != c.phase || got.Spec.Owner.ContainerID != c.owner {
			t.Errorf("%s: %+v, %v; want %s of %q", c.a.Name, got.Spec, err, c.phase, c.owner)
		}
		if r := c.a.Spec.Reservation; r != nil && (got.Spec.Reservation == nil || *got.Spec.Reservation != *r) {
			t.Errorf("%s: its reservation is %+v, want %+v", c.a.Name, got.Spec.Reservation, r)
		}
	}
}
