package allocator

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/ipam/pool"
)

// counting counts the lists of a whole pool.
type counting struct {
	allocation.Store
	lists *int
}

func (c counting) List(ctx context.Context, f allocation.Filter) ([]api.IPAllocation, error) {
	if f.Pool != "" && !f.Unused {
		*c.lists++
	}
	return c.Store.List(ctx, f)
}

// Near the end of a large pool, with a stale hint in which nine of ten addresses are allocated, few Allocates list the
// pool: trying single addresses costs less. Nodes do not know of each other here.
func TestLargePoolIsSeldomListed(t *testing.T) {
	p := makePool(t, "p", "10.2.0.1", "10.2.58.250", 0)
	span, err := pool.ParseSpan("10.2.5.0-10.2.7.255")
	if err != nil {
		t.Fatal(err)
	}
	p.Free = pool.FreeMap{Spans: []pool.Span{span}}
	lists := 0
	s := counting{directory(t), &lists}
	i := 0
	for addr := range p.Hinted().From(span.First) {
		if i++; i%10 == 0 {
			continue
		}
		a := api.IPAllocation{Spec: api.IPAllocationSpec{Address: addr.String(), Pool: p.Name, Phase: api.PhaseAllocated,
			Owner: ownerNamed(fmt.Sprint("held", i))}}
		a.Name = allocation.Name(p.Scope, addr)
		if _, err := s.Create(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	const nodes = 40
	for n := range nodes {
		a := newAllocator(s)
		a.Node = fmt.Sprint("node", n)
		allocate(t, a, fmt.Sprint("pod", n), p)
	}
	t.Logf("%d of %d Allocates listed the pool", lists, nodes)
	if lists > nodes/2 {
		t.Errorf("%d of %d Allocates listed the pool", lists, nodes)
	}
}

// fullPool returns a pool whose addresses are all allocated by the allocator, in a store that counts lists.
func fullPool(t *testing.T, s counting) (*Allocator, pool.Pool) {
	t.Helper()
	p := makePool(t, "p", "10.2.0.1", "10.2.0.100", 0)
	a := newAllocator(s)
	for i := range int(p.Total()) {
		allocate(t, a, fmt.Sprint("pod", i), p)
	}
	*s.lists = 0
	return a, p
}

// exhausted tries to allocate an address of a pool that is full.
func exhausted(t *testing.T, a *Allocator, p pool.Pool) {
	t.Helper()
	_, err := a.Allocate(t.Context(), Request{Pools: []pool.Pool{p}, Owner: ownerNamed("waits")})
	if e := (*ExhaustedError)(nil); !errors.As(err, &e) || e.Pools[0].Used != p.Total() {
		t.Fatalf("of a full pool: %v", err)
	}
}

// Each ADD of a pod without an address is retried by its runtime: a full pool is not listed each time.
func TestFullPoolIsSeldomListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := counting{directory(t), new(int)}
		a, p := fullPool(t, s)
		for _, want := range []int{1, 2} {
			for range 5 {
				exhausted(t, a, p)
			}
			if *s.lists != want {
				t.Errorf("listed %d times, want %d", *s.lists, want)
			}
			time.Sleep(100 * fullFor)
		}
		for _, m := range []pool.FreeMap{{}, {Complete: true}} {
			p.Free = m
			exhausted(t, a, p)
			*s.lists = 0
			for lists, cooling := range []time.Duration{time.Hour, 0} {
				a.Cooling = cooling
				release(t, a, "pod7")
				allocate(t, a, "pod7", p)
				if *s.lists > lists { // the address may also be found by guessing
					t.Errorf("listed %d times, want %d at most, for an address that cools for %s", *s.lists, lists, cooling)
				}
			}
		}
	})
}

// A node trusts the free map of a running controller: it does not list a full pool, only those addresses that are
// cooling.
func TestFullByTheFreeMap(t *testing.T) { synctest.Test(t, testFullByTheFreeMap) }

func testFullByTheFreeMap(t *testing.T) {
	s := counting{directory(t), new(int)}
	a, p := fullPool(t, s)
	one, err := pool.ParseSpan("10.2.0.7")
	if err != nil {
		t.Fatal(err)
	}
	six := pool.Span{First: one.First, Last: netip.MustParseAddr("10.2.0.12")}
	some, none := pool.FreeMap{Spans: []pool.Span{one}, Complete: true}, pool.FreeMap{Complete: true}
	many := pool.FreeMap{Spans: []pool.Span{six}, Complete: true}
	for _, c := range []struct {
		name  string
		maps  []pool.FreeMap
		lists int
	}{
		{"the first map that is seen may be years old", []pool.FreeMap{none}, 1},
		{"it replaces one", []pool.FreeMap{some, none}, 1},
		{"all of it was tried", []pool.FreeMap{none, some}, 1},
		{"a part of it was tried", []pool.FreeMap{none, many}, 2},
		{"it is a part", []pool.FreeMap{none, {Spans: some.Spans}}, 2},
		{"it is the same each time", []pool.FreeMap{none, none}, 2},
		{"it replaced one long ago", []pool.FreeMap{some, none, none}, 2},
	} {
		b := newAllocator(s)
		*s.lists = 0
		for i, m := range c.maps {
			if i == 2 {
				time.Sleep(100 * fullFor)
			}
			p.Free = m
			b.FreeMap = func(string) (pool.FreeMap, bool) { return m, true }
			b.full.lists = map[part]time.Time{} // lists are another test's subject
			exhausted(t, b, p)
		}
		if *s.lists != c.lists {
			t.Errorf("%s: listed %d times, want %d", c.name, *s.lists, c.lists)
		}
	}
	b := newAllocator(s)
	for _, m := range []pool.FreeMap{some, none} {
		p.Free = m
		exhausted(t, b, p)
	}
	release(t, a, "pod7")
	*s.lists = 0
	allocate(t, b, "early", p)
	if *s.lists > 0 {
		t.Errorf("listed %d times for an address that is cooling", *s.lists)
	}
}

// An address that is released because the pod's other one could not be allocated can be allocated again at once: it
// does not cool.
func TestUndoneInAFullPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, p := fullPool(t, counting{directory(t), new(int)})
		six := makePool(t, "six", "fd00::1", "fd00::1", 0)
		allocate(t, a, "six", six)
		exhausted(t, a, p)
		release(t, a, "pod7")
		_, err := a.Allocate(t.Context(), Request{Pools: []pool.Pool{p, six}, Owner: ownerNamed("both")})
		if e := (*ExhaustedError)(nil); !errors.As(err, &e) || e.Pools[0].Pool != "six" {
			t.Fatalf("with a full IPv6 pool: %v", err)
		}
		allocate(t, a, "waits", p)
	})
}

// A pool that is full in one VLAN may not be full in another one.
func TestFullInOneVLAN(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := pool.Read(api.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: api.IPPoolSpec{IPVersion: 4,
			IPRanges: []api.IPRange{
				{Start: "10.2.0.1", End: "10.2.0.100", SubnetInfo: api.SubnetInfo{Gateway: "10.2.0.254", PrefixLength: 24, VLAN: 2}},
				{Start: "10.3.0.1", End: "10.3.0.100", SubnetInfo: api.SubnetInfo{Gateway: "10.3.0.254", PrefixLength: 24, VLAN: 3}}}}})
		if err != nil {
			t.Fatal(err)
		}
		a := newAllocator(directory(t))
		for i := range 100 {
			allocate(t, a, fmt.Sprint("two", i), p.InVLAN(2))
		}
		for i := range 99 {
			allocate(t, a, fmt.Sprint("three", i), p.InVLAN(3))
		}
		exhausted(t, a, p.InVLAN(2))
		allocate(t, a, "last", p.InVLAN(3))
	})
}

// A pool does not count as full because of an older list while its free map has untried addresses.
func TestMapAfterAList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := counting{directory(t), new(int)}
		a, p := fullPool(t, s)
		a.Cooling = 0
		b := newAllocator(s)
		exhausted(t, b, p)
		release(t, a, "pod7")
		all, err := pool.ParseSpan("10.2.0.1-10.2.0.100")
		if err != nil {
			t.Fatal(err)
		}
		p.Free = pool.FreeMap{Spans: []pool.Span{all}, Complete: true} // other nodes have allocated 99 since
		allocate(t, b, "waits", p)
	})
}
