package allocator

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
)

// held is what the owners on this node hold. Only this node allocates addresses to them, so the store's content at the
// start and the changes since are complete, and ADD and DEL need no list. Where a response of the store was lost, the
// owner is in doubt, and the store is read again.
type held struct {
	// loading is locked while the allocations of earlier processes are read; no address is allocated in that time.
	loading chan struct{}

	loaded bool

	mu        sync.Mutex
	by        map[owner][]api.IPAllocation
	uncertain map[owner]bool
	// responseLost is when the last response of the store was lost.
	responseLost time.Time
}

func newHeld() *held {
	return &held{loading: make(chan struct{}, 1), by: map[owner][]api.IPAllocation{}, uncertain: map[owner]bool{}}
}

// owner is what identifies an owner.
type owner struct {
	containerID, ifName, network string
	ipamOnly                     bool
}

func ownerOf(o api.AllocationOwner) owner {
	return owner{o.ContainerID, o.IfName, o.Network, o.IPAMOnly}
}

// holds reports whether o has the address now.
func holds(a api.IPAllocation, o api.AllocationOwner) bool {
	return a.Spec.Phase == api.PhaseAllocated && ownerOf(a.Spec.Owner) == ownerOf(o) && a.Spec.Owner.Node == o.Node
}

// of returns what an owner on this node holds.
func (h *held) of(ctx context.Context, s allocation.Store, o api.AllocationOwner) ([]api.IPAllocation, error) {
	if err := h.load(ctx, s, o.Node); err != nil {
		return nil, fmt.Errorf("listing the allocations of %s: %w", o, err)
	}
	k := ownerOf(o)
	h.mu.Lock()
	known, uncertain := slices.Clone(h.by[k]), h.uncertain[k]
	h.mu.Unlock()
	if !uncertain {
		return known, nil
	}
	list, err := s.List(ctx, allocation.Filter{Node: o.Node})
	if err != nil {
		return nil, fmt.Errorf("listing the allocations of %s: %w", o, err)
	}
	list = slices.DeleteFunc(list, func(a api.IPAllocation) bool { return !holds(a, o) })
	h.mu.Lock()
	defer h.mu.Unlock()
	if delete(h.by, k); len(list) > 0 {
		h.by[k] = slices.Clone(list)
	}
	delete(h.uncertain, k)
	return list, nil
}

// load reads, once, what earlier processes have allocated.
func (h *held) load(ctx context.Context, s allocation.Store, node string) error {
	select {
	case h.loading <- struct{}{}:
		defer func() { <-h.loading }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if h.loaded {
		return nil
	}
	list, err := s.List(ctx, allocation.Filter{Node: node})
	if err != nil {
		return err
	}
	for _, a := range list {
		if a.Spec.Phase == api.PhaseAllocated {
			h.add(a)
		}
	}
	h.loaded = true
	return nil
}

// add records that a.Spec.Owner holds a.
func (h *held) add(a api.IPAllocation) {
	h.remove(a)
	h.mu.Lock()
	defer h.mu.Unlock()
	k := ownerOf(a.Spec.Owner)
	h.by[k] = append(h.by[k], a)
}

// remove records that a.Spec.Owner no longer holds a.
func (h *held) remove(a api.IPAllocation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	k := ownerOf(a.Spec.Owner)
	h.by[k] = slices.DeleteFunc(h.by[k], func(b api.IPAllocation) bool { return b.Name == a.Name })
	if len(h.by[k]) == 0 {
		delete(h.by, k)
	}
}

// all is what all owners hold.
func (h *held) all() []api.IPAllocation {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Concat(slices.Collect(maps.Values(h.by))...)
}

// compare reconciles with list, the store's content, and before, what was known before the store was read. Allocations
// that others have deleted are dropped. An owner that holds an unknown allocation is in doubt: a Create that timed out
// may be executed much later.
func (h *held) compare(before, list []api.IPAllocation) {
	has := map[string]string{}
	for _, a := range list {
		has[a.Name] = string(a.UID)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, b := range before {
		if k := ownerOf(b.Spec.Owner); has[b.Name] != string(b.UID) {
			h.by[k] = slices.DeleteFunc(h.by[k], func(a api.IPAllocation) bool { return a.UID == b.UID })
			if len(h.by[k]) == 0 {
				delete(h.by, k)
			}
			h.uncertain[k] = true
		}
	}
	for _, a := range list {
		k := ownerOf(a.Spec.Owner)
		if !slices.ContainsFunc(h.by[k], func(b api.IPAllocation) bool { return b.Name == a.Name }) {
			h.uncertain[k] = true
		}
	}
}

// markUncertain records that it is unknown what o holds.
func (h *held) markUncertain(o api.AllocationOwner) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.uncertain[ownerOf(o)], h.responseLost = true, time.Now()
}

// inDoubt reports whether a response of the store was lost less than d ago.
func (h *held) inDoubt(d time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.responseLost.IsZero() && time.Since(h.responseLost) < d
}
