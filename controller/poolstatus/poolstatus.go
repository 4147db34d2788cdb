// Package poolstatus computes the status of each IPPool: usage, free map and conditions. It is pure.
package poolstatus

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/controller/forecast"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/ipam/pool"
)

// Warning is when a pool counts as filling.
type Warning struct {
	Percent int // of its addresses in use
	Grows   forecast.Growth
}

// Of returns the statuses of pools, by name.
func Of(states []State, warn Warning) map[string]api.IPPoolStatus {
	out := map[string]api.IPPoolStatus{}
	for _, state := range states {
		state.Warning = warn
		p := state.Pool
		s := api.IPPoolStatus{Conditions: slices.Clone(p.Status.Conditions), FreeMap: state.free,
			Usage: &api.PoolUsage{Used: state.held.used, Total: state.total}}
		for _, c := range state.conditions() {
			c.ObservedGeneration = p.Generation
			meta.SetStatusCondition(&s.Conditions, c)
		}
		out[p.Name] = s
	}
	return out
}

// Read computes the inputs of the statuses. This is most of the work, and changes only with its arguments.
func Read(pools []*api.IPPool, allocations []*api.IPAllocation, others pool.Others) []State {
	valid, wrong := map[string]pool.Pool{}, map[string]error{}
	for _, p := range pools {
		read, err := pool.Read(*p)
		if err != nil {
			wrong[p.Name] = err
			continue
		}
		valid[p.Name] = read
		others.Pools = append(others.Pools, read)
	}
	slices.SortFunc(others.Pools, func(a, b pool.Pool) int { return strings.Compare(a.Name, b.Name) })
	others = others.Relevant()
	held := count(allocations)
	var out []State
	for _, p := range pools {
		state := State{Pool: p, wrong: wrong[p.Name], held: held.of[p.Name]}
		if read, ok := valid[p.Name]; ok {
			state.total = read.Total()
			state.overlaps = read.Overlaps(others)
			state.free = freeMap(read, held.addresses[read.Scope])
		}
		out = append(out, state)
	}
	return out
}

// held are the addresses in use.
type held struct {
	of map[string]holding // by pool
	// addresses are those held in each scope, sorted.
	addresses map[string][]netip.Addr
}

// holding counts a pool's allocations.
type holding struct{ used, cooling, conflicts int64 }

func count(allocations []*api.IPAllocation) held {
	h := held{of: map[string]holding{}, addresses: map[string][]netip.Addr{}}
	for _, a := range allocations {
		n := h.of[a.Spec.Pool]
		n.used++
		switch a.Spec.Phase {
		case api.PhaseCooling:
			n.cooling++
		case api.PhaseConflict:
			n.conflicts++
		}
		h.of[a.Spec.Pool] = n
		if scope, addr, err := allocation.ParseName(a.Name); err == nil {
			h.addresses[scope] = append(h.addresses[scope], addr)
		}
	}
	for _, list := range h.addresses {
		slices.SortFunc(list, netip.Addr.Compare)
	}
	return h
}

// freeMap is the largest spans of free addresses, sorted.
func freeMap(p pool.Pool, used []netip.Addr) []string {
	var out []string
	for _, s := range pool.Largest(p.Without(used), api.PoolFreeMapMost) {
		out = append(out, s.String())
	}
	return out
}

// State is the input of a pool's status.
type State struct {
	Pool     *api.IPPool
	wrong    error // why it is invalid
	held     holding
	total    int64
	overlaps []pool.Overlap
	free     []string // the free map
	Warning
}

// IsOf reports whether p is the pool that was read, with the same spec.
func (s State) IsOf(p *api.IPPool) bool {
	return p.UID == s.Pool.UID && p.Generation == s.Pool.Generation && maps.Equal(p.Annotations, s.Pool.Annotations) &&
		p.DeletionTimestamp.Equal(s.Pool.DeletionTimestamp)
}

// conditions are the five of a pool, Ready last.
func (s State) conditions() []metav1.Condition {
	out := []metav1.Condition{
		condition(api.PoolInvalid, s.wrong != nil, "Invalid", "Valid", fmt.Sprint(s.wrong)),
		condition(api.PoolOverlapping, len(s.overlaps) > 0, "Overlap", "NoOverlap", s.overlapText()),
		condition(api.PoolExhausted, s.exhausted(), "AllInUse", "AddressesLeft", s.exhaustedText()),
		condition(api.PoolFilling, s.filling(), "AboveThreshold", "BelowThreshold", s.fillingText()),
	}
	ready := condition(api.PoolReady, true, "Ready", "", "")
	switch {
	case s.wrong != nil:
		ready = condition(api.PoolReady, false, "", "Invalid", "")
	case pool.Yields(s.overlaps):
		ready = condition(api.PoolReady, false, "", "Overlapping", "")
	case s.Pool.DeletionTimestamp != nil:
		ready = condition(api.PoolReady, false, "", "Deleted", "")
		ready.Message = fmt.Sprintf("the pool is being deleted; %d of its addresses are still in use", s.held.used)
	case s.exhausted():
		ready = condition(api.PoolReady, false, "", "Exhausted", "")
	}
	return append(out, ready)
}

// exhausted reports whether no address is free. Addresses that are cooling are then allocated early.
func (s State) exhausted() bool { return s.total > 0 && s.held.used-s.held.cooling >= s.total }

func (s State) exhaustedText() string {
	text := fmt.Sprintf("%d of %d addresses are in use", s.held.used, s.total)
	if s.held.conflicts > 0 {
		text += fmt.Sprintf(" (%d by hosts outside of the cluster)", s.held.conflicts)
	}
	return text + ". Extend spec.ipRanges, or delete pods that use the pool"
}

// filling reports whether so much is in use that an administrator should know.
func (s State) filling() bool {
	return s.total > 0 && float64(s.held.used)*100 >= float64(s.Percent)*float64(s.total)
}

func (s State) fillingText() string {
	text := fmt.Sprintf("%d of %d addresses are in use, %d percent or more", s.held.used, s.total, s.Percent)
	if in, known := s.Grows.FullIn(s.Pool.Name, s.total-s.held.used); known && forecast.Soon(in) != "" {
		text += ". At its current growth rate the pool is full within " + forecast.Soon(in)
	}
	return text + ". Extend spec.ipRanges"
}

// maxOverlaps is how many overlaps are reported: the API server accepts 32 KiB, readers less.
const maxOverlaps = 5

func (s State) overlapText() string {
	var texts []string
	for i, o := range s.overlaps {
		if i == maxOverlaps {
			texts = append(texts, fmt.Sprintf("and %d more", len(s.overlaps)-i))
			break
		}
		text := o.String()
		if o.Yields {
			text += ". Until then no addresses are allocated from pool " + s.Pool.Name
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, "; ")
}

// condition has a message only if it is true.
func condition(kind string, is bool, yes, no, message string) metav1.Condition {
	if is {
		return metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: yes, Message: message}
	}
	return metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: no}
}
