package allocator

import (
	"context"
	"fmt"
	"testing"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/ipam/pool"
)

// counting counts how often a pool is listed.
type counting struct {
	allocation.Store
	lists *int
}

func (c counting) List(ctx context.Context, f allocation.Filter) ([]api.IPAllocation, error) {
	if f.Pool != "" {
		*c.lists++
	}
	return c.Store.List(ctx, f)
}

// Near the end of a large pool, with a stale hint of which nine in ten are allocated, few Allocates list the pool:
// trying single addresses costs less. Nodes do not know of each other here.
func TestLargePoolIsSeldomListed(t *testing.T) {
	p := makePool(t, "p", "10.2.0.1", "10.2.58.250", 0)
	span, err := pool.ParseSpan("10.2.5.0-10.2.7.255")
	if err != nil {
		t.Fatal(err)
	}
	p.Free = []pool.Span{span}
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
