package allocator

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/ipam/pool"
)

// blindTries is how many addresses are tried at least before the pool is listed. If half of a pool is free, one in
// eight Allocates lists it.
const blindTries = 3

// Listing a nearly full pool returns all of its addresses, so it is deferred by one try for each listedPerTry of them.
// maxTries bounds how long that may take.
const listedPerTry, maxTries = 500, 100

// spares is how many candidates of a list are kept, and spareAge for how long, so that a pool that is nearly full is
// not listed for each address.
const (
	spares   = 64
	spareAge = 5 * time.Second
)

// startWindow is the range of addresses of a pool in which nodes start to search: large enough for different starts,
// and small enough for readable IPv6 addresses.
const startWindow = 1 << 20

// anyOf allocates a free address of one pool. The error is an *ExhaustedError if there is none.
func (a *Allocator) anyOf(ctx context.Context, p pool.Pool, r Request) (given, error) {
	s := search{Allocator: a, pool: p, request: r, foreign: map[string]bool{}, tried: map[netip.Addr]bool{}}
	for {
		if err := ctx.Err(); err != nil { // a directory store does not check ctx
			return given{}, fmt.Errorf("looking for a free address of pool %s: %w", p.Name, err)
		}
		for n := 0; n < s.tries(); n++ {
			c, ok := s.nextCandidate()
			if !ok {
				break
			}
			if g, err := s.try(ctx, c); done(err) {
				return g, err
			}
		}
		candidates, usage, err := s.candidates(ctx)
		if err != nil {
			return given{}, err
		}
		if len(candidates) == 0 {
			return given{}, &ExhaustedError{Pools: []Usage{usage}}
		}
		a.keep(p, candidates)
	}
}

// done reports whether the search is over: with an address, or with an error other than that the address is in use.
func done(err error) bool {
	var held *heldError
	return !errors.As(err, &held)
}

// search is one Allocate's search for an address in one pool.
type search struct {
	*Allocator
	pool    pool.Pool
	request Request
	// foreign are names of allocations that a list of the pool does not have,
	// because they are of another pool with the same addresses.
	foreign map[string]bool
	// tried are addresses that are in use.
	tried map[netip.Addr]bool
}

// candidate is an address to try.
type candidate struct {
	addr netip.Addr
	// early: it is still cooling, and the pool has nothing better.
	early bool
}

// tries is how many addresses are tried before the pool is listed. If the controller's free map is empty, the pool may
// well be exhausted.
func (s *search) tries() int {
	return int(max(blindTries, min(s.pool.Hinted().Total(), s.pool.Total()/listedPerTry, maxTries)))
}

func (s *search) try(ctx context.Context, c candidate) (given, error) {
	g, err := s.Allocator.try(ctx, s.pool, c.addr, s.request, c.early)
	var held *heldError
	if errors.As(err, &held) && held.holder.Spec.Pool != s.pool.Name {
		s.foreign[held.holder.Name] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		s.next[s.pool.Name] = c.addr.Next()
	case !done(err):
		s.tried[c.addr] = true
		s.next[s.pool.Name] = distantStart(s.pool)
	}
	return g, err
}

// distantStart is where a node continues after it reached addresses of another node. That node is allocating behind
// them, and both would compete for each address from there on.
func distantStart(p pool.Pool) netip.Addr {
	if hinted := p.Hinted(); hinted.Total() > 0 {
		p = hinted
	}
	return p.At(rand.Int64N(min(p.Total(), startWindow)))
}

// spare are the remaining candidates of a list of the pool.
type spare struct {
	listed time.Time
	left   []candidate
}

// fresh are the candidates, unless the list is too old.
func (s spare) fresh() []candidate {
	if time.Since(s.listed) >= spareAge {
		return nil
	}
	return s.left
}

// keep stores the remaining candidates of a list.
func (a *Allocator) keep(p pool.Pool, left []candidate) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.spare[partOf(p)] = spare{time.Now(), left[:min(len(left), spares)]}
}

// nextCandidate is the next address that may be free: one of the last list, else one of the controller's free map, else
// any. False: all addresses of the map were tried.
func (s *search) nextCandidate() (candidate, bool) {
	if s.FreeMap != nil && len(s.tried) > 0 { // that of the request was wrong
		if now, ok := s.FreeMap(s.pool.Name); ok {
			s.pool.Free = now
		}
	}
	s.full.recordMap(s.pool)
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.spare[partOf(s.pool)]; len(k.fresh()) > 0 {
		c := k.left[0]
		k.left = k.left[1:]
		s.spare[partOf(s.pool)] = k
		return c, true
	}
	addr, ok := s.nextInMap()
	if !ok && s.pool.Hinted().Total() == 0 && !s.full.byMap(s.pool) {
		addr, ok = s.cursor(s.pool), true
	}
	if !ok {
		return candidate{}, false
	}
	s.next[s.pool.Name] = addr.Next()
	return candidate{addr: addr}, true
}

// nextInMap is the next address of the free map that was not tried. s.mu is locked.
func (s *search) nextInMap() (netip.Addr, bool) {
	for addr := range s.pool.Hinted().From(s.cursor(s.pool)) {
		if !s.tried[addr] {
			return addr, true
		}
	}
	return netip.Addr{}, false
}

// cursor is where to look next in a pool. Nodes start at different addresses. a.mu is locked.
func (a *Allocator) cursor(p pool.Pool) netip.Addr {
	next, began := a.next[p.Name]
	if !began {
		h := fnv.New64a()
		h.Write([]byte(a.Node + " " + p.Name))
		next = p.At(int64(h.Sum64() % uint64(min(p.Total(), startWindow))))
	}
	return first(p, next)
}

// first is the first address of p from addr on, wrapping around.
func first(p pool.Pool, addr netip.Addr) netip.Addr {
	for a := range p.From(addr) {
		return a
	}
	return netip.Addr{}
}

// candidates are free addresses, else those that have cooled, then those that are cooling. While no address counts as
// free, only those are listed that no pod has: the API server sends few objects instead of the whole pool.
func (s *search) candidates(ctx context.Context) ([]candidate, Usage, error) {
	s.mu.Lock()
	_, left := s.nextInMap()
	s.mu.Unlock()
	if !left && (s.full.byList(s.pool) || s.full.byMap(s.pool)) {
		l, err := s.list(ctx, allocation.Filter{Pool: s.pool.Name, Unused: true})
		l.usage.Used = s.pool.Total()
		return l.unused(), l.usage, err
	}
	l, err := s.list(ctx, allocation.Filter{Pool: s.pool.Name})
	if err != nil {
		return nil, Usage{}, err
	}
	for name := range s.foreign {
		if _, addr, err := allocation.ParseName(name); err == nil && !l.held[addr] {
			l.held[addr] = true
			l.usage.Used++
		}
	}
	if free := s.free(l.held); len(free) > 0 {
		return free, l.usage, nil
	}
	s.full.listed(s.pool)
	return l.unused(), l.usage, nil
}

// listed is what a list of a pool's allocations says.
type listed struct {
	held            map[netip.Addr]bool
	cooled, cooling []api.IPAllocation
	usage           Usage
}

// unused are addresses that no pod has.
func (l listed) unused() []candidate { return append(oldest(l.cooled), oldest(l.cooling)...) }

func (s *search) list(ctx context.Context, f allocation.Filter) (listed, error) {
	l := listed{held: map[netip.Addr]bool{}, usage: Usage{Pool: s.pool.Name, Total: s.pool.Total()}}
	list, err := s.Store.List(ctx, f)
	now := time.Now()
	for _, h := range list {
		scope, addr, err := allocation.ParseName(h.Name)
		if err != nil || scope != s.pool.Scope || !s.pool.Contains(addr) {
			continue
		}
		l.held[addr] = true
		l.usage.Used++
		switch {
		case Expired(h, now):
			l.cooled = append(l.cooled, h)
		case h.Spec.Phase == api.PhaseCooling:
			l.cooling = append(l.cooling, h)
			l.usage.Cooling++
		case h.Spec.Phase == api.PhaseConflict:
			l.usage.Conflicts++
		}
	}
	return l, err
}

// free returns addresses that are not allocated.
func (s *search) free(held map[netip.Addr]bool) []candidate {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []candidate
	for addr := range s.pool.From(s.cursor(s.pool)) {
		if !held[addr] {
			out = append(out, candidate{addr: addr})
		}
		if len(out) == spares {
			break
		}
	}
	return out
}

// shuffleWindow is the number of oldest addresses among which nodes choose, so that they do not all try the same one.
const shuffleWindow = 32

// oldest are the addresses of list, those released first at the front, approximately.
func oldest(list []api.IPAllocation) []candidate {
	until := func(h api.IPAllocation) time.Time {
		if h.Spec.Until == nil {
			return time.Time{}
		}
		return h.Spec.Until.Time
	}
	slices.SortFunc(list, func(a, b api.IPAllocation) int { return until(a).Compare(until(b)) })
	var out []candidate
	for few := range slices.Chunk(list, shuffleWindow) {
		rand.Shuffle(len(few), func(i, j int) { few[i], few[j] = few[j], few[i] })
		for _, h := range few {
			if _, addr, err := allocation.ParseName(h.Name); err == nil {
				out = append(out, candidate{addr, true})
			}
		}
	}
	return out
}
