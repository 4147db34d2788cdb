package allocator

import (
	"fmt"
	"sync"
	"time"

	"github.com/fairlead-cni/fairlead/ipam/pool"
)

// fullFor is how long a pool counts as full, per address of the pool: the runtime retries each pod's ADD, on each node,
// and listing the allocations of a large pool costs the API server a second.
const fullFor = 2 * time.Millisecond

// fullPools are the pools that count as full, so that they need not be listed: a list had no free address, or the
// controller's free map has none. Only a map that replaced another one counts, as that shows that a controller runs.
type fullPools struct {
	mu sync.Mutex
	// lists are when a list found no free address.
	lists map[part]time.Time
	// maps are by pool name.
	maps map[string]mapSeen
}

// part is a pool, or what is left of it in some VLANs.
type part struct{ pool, addresses string }

func partOf(p pool.Pool) part { return part{p.Name, fmt.Sprint(p.Allocatable())} }

// mapSeen is the last free map of a pool, and when it replaced another one; zero if it has not.
type mapSeen struct {
	free  pool.FreeMap
	since time.Time
}

func newFullPools() fullPools {
	return fullPools{lists: map[part]time.Time{}, maps: map[string]mapSeen{}}
}

// recordMap records the pool's free map.
func (f *fullPools) recordMap(p pool.Pool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	last, seen := f.maps[p.Name]
	switch {
	case !seen:
		f.maps[p.Name] = mapSeen{free: p.Free}
	case !last.free.Equal(p.Free):
		f.maps[p.Name] = mapSeen{p.Free, time.Now()}
	}
}

// listed notes that a list of all of the pool had no free address.
func (f *fullPools) listed(p pool.Pool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lists[partOf(p)] = time.Now()
}

// forget notes that an address of a pool is free: it was released here.
func (f *fullPools) forget(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for k := range f.lists {
		if k.pool == name {
			delete(f.lists, k)
		}
	}
	if last, seen := f.maps[name]; seen {
		f.maps[name] = mapSeen{free: last.free}
	}
}

// byList reports whether the pool counts as full because of a list.
func (f *fullPools) byList(p pool.Pool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return recent(f.lists[partOf(p)], p)
}

// byMap reports whether the pool counts as full if all addresses of its free map are in use.
func (f *fullPools) byMap(p pool.Pool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return p.Free.Complete && recent(f.maps[p.Name].since, p)
}

func recent(since time.Time, p pool.Pool) bool {
	return time.Since(since) < time.Duration(min(p.Total(), 1<<20))*fullFor
}
