package allocator

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/ipam/pool"
)

func keepFor(uid string, ordinal int) *api.AllocationReservation {
	return &api.AllocationReservation{Kind: api.KindStatefulSet, Namespace: "default", Name: "db", UID: uid, Ordinal: ordinal}
}

// onNode returns an allocator of a node with the store s.
func onNode(s allocation.Store, node string) *Allocator {
	return New(Config{Store: s, Node: node, Cooling: 0, Log: logr.Discard()})
}

// sticky allocates the addresses reserved for an ordinal to a pod. Each container has a name of its own.
func sticky(ctx context.Context, a *Allocator, container string, keep *api.AllocationReservation, pools ...pool.Pool) (
	string, error) {
	got, err := a.Allocate(ctx, Request{Pools: pools, Owner: ownerNamed(container), Keep: keep})
	return prefixes(got), err
}

// reserve creates a reservation as the controller does.
func reserve(t *testing.T, s allocation.Store, p pool.Pool, addr int64, keep *api.AllocationReservation) {
	t.Helper()
	at := p.At(addr)
	_, err := s.Create(t.Context(), api.IPAllocation{ObjectMeta: metav1.ObjectMeta{Name: allocation.Name("", at)},
		Spec: api.IPAllocationSpec{Address: at.String(), Pool: p.Name, Phase: api.PhaseReserved, Reservation: keep}})
	if err != nil {
		t.Fatal(err)
	}
}

func TestKeptDirectory(t *testing.T) {
	checkKept(t, func(t *testing.T) allocation.Store { return directory(t) })
}

func TestKubeKept(t *testing.T) {
	where := apiServer(t)
	checkKept(t, func(t *testing.T) allocation.Store { return emptied(t, mustOpen(t, where)) })
}

// emptied returns s with no allocations.
func emptied(t *testing.T, s allocation.Store) allocation.Store {
	t.Helper()
	list, err := s.List(t.Context(), allocation.Filter{})
	for _, a := range list {
		err = errors.Join(err, s.Delete(t.Context(), a))
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// checkKept tests reserved addresses with any store.
func checkKept(t *testing.T, store func(*testing.T) allocation.Store) {
	for name, check := range map[string]func(*testing.T, allocation.Store){"taken": keptTaken, "unmade": keptUnmade,
		"elsewhere": keptElsewhere, "spare": keptSpare, "stranger": keptStranger, "answers": keptAnswers, "mac": keptMAC,
		"shuffled": keptShuffled, "race": keptRace, "named": keptNamed, "failed": keptFailed,
		"lost": keptLost} {
		t.Run(name, func(t *testing.T) { check(t, store(t)) })
	}
}

func pairOfPools(t *testing.T) (v4, v6 pool.Pool) {
	return makePool(t, "v4", "10.2.0.1", "10.2.0.40", 0), makePool(t, "v6", "fd00::1", "fd00::40", 0)
}

// A pod gets the address that is reserved for its ordinal, on any node, and its DEL makes it Reserved again.
func keptTaken(t *testing.T, s allocation.Store) {
	v4, v6 := pairOfPools(t)
	for i := range 4 {
		reserve(t, s, v4, int64(10+i), keepFor("u", i))
		reserve(t, s, v6, int64(20+i), keepFor("u", i))
	}
	const want = "10.2.0.13/16 fd00::17/64"
	for round, node := range []string{"n1", "n2", "n1"} {
		a, container := onNode(s, node), fmt.Sprint("db-2-", round)
		got, err := sticky(t.Context(), a, container, keepFor("u", 2), v4, v6)
		if err != nil || got != want {
			t.Fatalf("on %s: %s, %v, want %s", node, got, err, want)
		}
		again, err := sticky(t.Context(), a, container, keepFor("u", 2), v4, v6)
		if err != nil || again != want {
			t.Errorf("the same ADD again: %s, %v", again, err)
		}
		release(t, a, container)
		if p := phases(t, s); strings.Contains(p, "Allocated") || strings.Count(p, "Reserved") != 8 {
			t.Errorf("after DEL: %s", p)
		}
	}
}

// Without a reservation the pod still gets an address, which is reserved from then on.
func keptUnmade(t *testing.T, s allocation.Store) {
	v4, v6 := pairOfPools(t)
	first, err := sticky(t.Context(), onNode(s, "n1"), "x", keepFor("u", 0), v4, v6)
	if err != nil {
		t.Fatal(err)
	}
	list, err := s.List(t.Context(), allocation.For(*keepFor("u", 0)))
	if err != nil || len(list) != 2 || list[0].Spec.Phase != api.PhaseAllocated {
		t.Errorf("kept are %+v, %v", list, err)
	}
	release(t, onNode(s, "n1"), "x")
	if again, err := sticky(t.Context(), onNode(s, "n2"), "y", keepFor("u", 0), v4, v6); err != nil || again != first {
		t.Errorf("made again: %s, %v, want %s", again, err, first)
	}
	if other, err := sticky(t.Context(), onNode(s, "n2"), "z", keepFor("u", 1), v4, v6); err != nil || other == first {
		t.Errorf("the next ordinal: %s, %v", other, err)
	}
}

// While a pod has the address, no other pod of the ordinal gets one.
func keptElsewhere(t *testing.T, s allocation.Store) {
	v4, v6 := pairOfPools(t)
	if _, err := sticky(t.Context(), onNode(s, "n1"), "db-0", keepFor("u", 0), v4); err != nil {
		t.Fatal(err)
	}
	before := phases(t, s)
	for _, pools := range [][]pool.Pool{{v4}, {v6}, {v4, v6}} {
		_, err := sticky(t.Context(), onNode(s, "n2"), "new", keepFor("u", 0), pools...)
		var held *StickyError
		if !errors.As(err, &held) || held.Holder.Spec.Owner.Node != "n1" {
			t.Errorf("%v", err)
		}
		for _, want := range []string{"is reserved for it (StatefulSet default/db, ordinal 0)", "pod default/db-0 on node n1 still has it",
			"kubectl delete node n1", "node.kubernetes.io/out-of-service"} {
			if !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("%v: want %s", err, want)
			}
		}
	}
	if now := phases(t, s); now != before {
		t.Errorf("%s, before %s", now, before)
	}
	release(t, onNode(s, "n1"), "db-0")
	if _, err := sticky(t.Context(), onNode(s, "n2"), "new", keepFor("u", 0), v4); err != nil {
		t.Errorf("when it was released: %v", err)
	}
}

// Of two reservations for one ordinal the pod gets one, and the other is released.
func keptSpare(t *testing.T, s allocation.Store) {
	v4, v6 := pairOfPools(t)
	reserve(t, s, v4, 5, keepFor("u", 0))
	reserve(t, s, v4, 3, keepFor("u", 0))
	reserve(t, s, v4, 4, keepFor("u", 1))
	reserve(t, s, v6, 4, keepFor("u", 0)) // the template now asks for IPv4 only
	if _, err := sticky(t.Context(), onNode(s, "n1"), "db-0", keepFor("u", 0), v4); err != nil {
		t.Fatal(err)
	}
	list, err := s.List(t.Context(), allocation.For(*keepFor("u", 0)))
	if err != nil || len(list) != 1 {
		t.Errorf("kept are %+v, %v, want one", list, err)
	}
	if all, err := s.List(t.Context(), allocation.Filter{UID: "u"}); err != nil || len(all) != 2 {
		t.Errorf("of the set: %+v, %v", all, err)
	}
}

// A host outside of the cluster uses the reserved address: it is marked as a conflict, and the pod gets and keeps
// another.
func keptStranger(t *testing.T, s allocation.Store) {
	v4, _ := pairOfPools(t)
	reserve(t, s, v4, 5, keepFor("u", 0))
	a := onNode(s, "n1")
	a.Probe = func(_ context.Context, addr Address) (api.MAC, bool, error) {
		return api.MAC{2, 9}, addr.Prefix.Addr() == v4.At(5), nil
	}
	a.MAC = func(Address) api.MAC { return api.MAC{2, 1} }
	got, err := sticky(t.Context(), a, "db-0", keepFor("u", 0), v4)
	if err != nil || strings.HasPrefix(got, v4.At(5).String()+"/") {
		t.Fatalf("%s, %v", got, err)
	}
	list, err := s.List(t.Context(), allocation.For(*keepFor("u", 0)))
	if err != nil || len(list) != 1 || !strings.HasPrefix(got, list[0].Spec.Address+"/") {
		t.Errorf("kept are %+v, %v, want %s", list, err, got)
	}
	mark, err := s.Get(t.Context(), allocation.Name("", v4.At(5)))
	if err != nil || mark.Spec.Phase != api.PhaseConflict || mark.Spec.Reservation != nil {
		t.Errorf("%+v, %v, want a mark", mark.Spec, err)
	}
}

// The previous pod still replies on the wire: that is no conflict, and its address stays reserved.
func keptAnswers(t *testing.T, s allocation.Store) {
	v4, _ := pairOfPools(t)
	for what, keep := range map[string]*api.AllocationReservation{"derived": keepFor("u", 0),
		"kept": {Kind: "Deployment", Namespace: "default", Name: "web", UID: "d", MAC: "02:00:00:00:00:07"}} {
		reserve(t, s, v4, int64(5+len(what)), keep)
		a := onNode(s, "n1")
		a.MAC = func(Address) api.MAC { return api.MAC{2, 1} }
		a.Probe = func(context.Context, Address) (api.MAC, bool, error) {
			if keep.MAC != "" {
				return api.MAC{2, 0, 0, 0, 0, 7}, true, nil
			}
			return api.MAC{2, 1}, true, nil
		}
		_, err := sticky(t.Context(), a, "db-0", keep, v4)
		var answers *StillInUseError
		if !errors.As(err, &answers) {
			t.Errorf("%s: %v", what, err)
		}
		list, err := s.List(t.Context(), allocation.For(*keep))
		if err != nil || len(list) != 1 || list[0].Spec.Phase != api.PhaseReserved {
			t.Errorf("%s: %+v, %v, want it Reserved", what, list, err)
		}
	}
}

// A recorded MAC is the pod's, even with another address.
func keptMAC(t *testing.T, s allocation.Store) {
	v4, v6 := pairOfPools(t)
	keep := keepFor("u", 0)
	keep.MAC = "02:11:22:33:44:55"
	reserve(t, s, v4, 3, keep)
	mine := *keep
	mine.MAC = "02:00:00:00:00:01" // what the agent would choose
	got, err := onNode(s, "n1").Allocate(t.Context(), Request{Pools: []pool.Pool{v4}, Owner: ownerNamed("a"), Keep: &mine})
	if err != nil || got[0].MAC.String() != keep.MAC {
		t.Fatalf("%+v, %v", got, err)
	}
	release(t, onNode(s, "n1"), "a")
	got, err = onNode(s, "n2").Allocate(t.Context(), Request{Pools: []pool.Pool{v6}, Owner: ownerNamed("b"), Keep: &mine})
	if err != nil || got[0].MAC.String() != keep.MAC {
		t.Errorf("in another pool: %+v, %v", got, err)
	}
	release(t, onNode(s, "n2"), "b")
	list, err := s.List(t.Context(), allocation.For(mine))
	if err != nil || len(list) != 1 || list[0].Spec.Reservation.MAC != keep.MAC {
		t.Fatalf("%+v, %v", list, err)
	}
	list[0].Spec.Reservation.MAC = "33:33:00:00:00:01"
	if _, err := s.Update(t.Context(), list[0]); err != nil {
		t.Fatal(err)
	}
	_, err = onNode(s, "n1").Allocate(t.Context(), Request{Pools: []pool.Pool{v6}, Owner: ownerNamed("c"), Keep: &mine})
	if err == nil || !strings.Contains(err.Error(), "is not a unicast MAC address. Correct it, or remove it") {
		t.Errorf("a MAC of many: %v", err)
	}
}

// With any order of ADDs and DELs on any nodes, ordinal i has the address of i.
func keptShuffled(t *testing.T, s allocation.Store) {
	v4, v6 := pairOfPools(t)
	const pods = 8
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range pods {
		reserve(t, s, v4, int64(10+i), keepFor("u", i))
		reserve(t, s, v6, int64(10+i), keepFor("u", i))
	}
	for round := range 3 {
		order := rng.Perm(pods)
		var all sync.WaitGroup
		for _, i := range order {
			all.Go(func() {
				a, container := onNode(s, fmt.Sprint("n", (i+round)%3)), fmt.Sprintf("db-%d-%d", i, round)
				want := fmt.Sprintf("%s/16 %s/64", v4.At(int64(10+i)), v6.At(int64(10+i)))
				got, err := sticky(t.Context(), a, container, keepFor("u", i), v4, v6)
				if err != nil || got != want {
					t.Errorf("round %d, ordinal %d: %s, %v, want %s", round, i, got, err, want)
				}
				if err := a.Release(t.Context(), ownerNamed(container)); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
}

// Of many concurrent pods of one ordinal, with no reservation or with two made by two controllers, at most one has an
// address; and when they are gone, a single pod gets one.
func keptRace(t *testing.T, s allocation.Store) {
	for round := range 6 {
		v4 := makePool(t, fmt.Sprint("v4-", round), fmt.Sprintf("10.2.%d.1", round), fmt.Sprintf("10.2.%d.40", round), 0)
		v6 := makePool(t, fmt.Sprint("v6-", round), fmt.Sprintf("fd00::%d:1", round), fmt.Sprintf("fd00::%d:40", round), 0)
		keep := keepFor(fmt.Sprint("u", round), 0)
		for n := range round % 3 {
			reserve(t, s, v4, int64(n), keep)
		}
		var mu sync.Mutex
		var all sync.WaitGroup
		won := map[string]*Allocator{}
		for i := range 6 {
			all.Go(func() {
				a, container := onNode(s, fmt.Sprint("n", i)), fmt.Sprintf("r%d-%d", round, i)
				_, err := sticky(t.Context(), a, container, keep, v4, v6)
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					won[container] = a
				} else if held := (*StickyError)(nil); !errors.As(err, &held) && !errors.Is(err, allocation.ErrConflict) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if len(won) > 1 {
			t.Fatalf("round %d: %d have an address: %s", round, len(won), phases(t, s))
		}
		for container, a := range won {
			release(t, a, container)
		}
		if _, err := sticky(t.Context(), onNode(s, "last"), fmt.Sprint("last", round), keep, v4, v6); err != nil {
			t.Errorf("round %d: alone: %v: %s", round, err, phases(t, s))
		}
		list, err := s.List(t.Context(), allocation.For(*keep))
		if err != nil || len(list) != 2 {
			t.Errorf("round %d: kept are %d: %s, %v", round, len(list), phases(t, s), err)
		}
	}
}

// A requested address is used, whatever was reserved before.
func keptNamed(t *testing.T, s allocation.Store) {
	v4, _ := pairOfPools(t)
	reserve(t, s, v4, 5, keepFor("u", 0))
	reserve(t, s, v4, 7, keepFor("other", 0))
	r := Request{Pools: []pool.Pool{v4}, Owner: ownerNamed("a"), Keep: keepFor("u", 0)}
	r.PodIPs = append(r.PodIPs, v4.At(7))
	_, err := onNode(s, "n1").Allocate(t.Context(), r)
	if err == nil || !strings.Contains(err.Error(), "is reserved for StatefulSet default/db, ordinal 0: ask for another") {
		t.Errorf("one that is kept for others: %v", err)
	}
	r.PodIPs[0] = v4.At(9)
	got, err := onNode(s, "n1").Allocate(t.Context(), r)
	if err != nil || len(got) != 1 || got[0].Prefix.Addr() != v4.At(9) {
		t.Errorf("%+v, %v", got, err)
	}
	list, err := s.List(t.Context(), allocation.Filter{UID: "u"})
	if err != nil || len(list) != 1 || list[0].Spec.Address != v4.At(9).String() {
		t.Errorf("kept are %+v, %v", list, err)
	}
}

// An ADD that fails for the second family returns the first family's address to Reserved.
func keptFailed(t *testing.T, s allocation.Store) {
	v4, _ := pairOfPools(t)
	full := makePool(t, "full", "fd00::77", "fd00::77", 0)
	reserve(t, s, v4, 5, keepFor("u", 0))
	reserve(t, s, full, 0, keepFor("other", 0))
	_, err := sticky(t.Context(), onNode(s, "n1"), "a", keepFor("u", 0), v4, full)
	var exhausted *ExhaustedError
	if !errors.As(err, &exhausted) {
		t.Errorf("%v", err)
	}
	list, err := s.List(t.Context(), allocation.Filter{UID: "u"})
	if err != nil || len(list) != 1 || list[0].Spec.Phase != api.PhaseReserved ||
		list[0].Spec.Address != v4.At(5).String() {
		t.Errorf("%+v, %v", list, err)
	}
}

// The allocation of a running pod was lost, and the controller has reserved the address again: it goes to that pod, not
// to others or to an owner that is unknown.
func keptLost(t *testing.T, s allocation.Store) {
	v4, _ := pairOfPools(t)
	reserve(t, s, v4, 5, keepFor("u", 0))
	a := onNode(s, "n1")
	for _, keep := range []*api.AllocationReservation{nil, keepFor("u", 1), keepFor("other", 0)} {
		var taken *allocation.TakenError
		_, err := a.Restore(t.Context(), ownerNamed("db-0"), "v4", "", v4.At(5), keep)
		if !errors.As(err, &taken) || !strings.Contains(err.Error(), "is reserved for StatefulSet default/db, ordinal 0") {
			t.Errorf("for %v: %v", keep, err)
		}
	}
	if _, err := a.Restore(t.Context(), ownerNamed("db-0"), "v4", "", v4.At(5), keepFor("u", 0)); err != nil {
		t.Error(err)
	}
	for _, want := range []bool{true, false} { // the second time it exists
		lost, err := a.Restore(t.Context(), ownerNamed("db-0"), "v4", "", v4.At(6), keepFor("u", 0))
		if lost != want || err != nil {
			t.Errorf("lost: %t, want %t; %v", lost, want, err)
		}
	}
	list, err := s.List(t.Context(), allocation.For(*keepFor("u", 0)))
	if err != nil || len(list) != 2 || list[0].Spec.Phase != api.PhaseAllocated ||
		list[1].Spec.Phase != api.PhaseAllocated {
		t.Errorf("%+v, %v", list, err)
	}
}
