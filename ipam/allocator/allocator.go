// Package allocator allocates addresses of IPPools to bridged pods and releases them. Allocations are in an
// allocation.Store, where other nodes see them; those whose owner is on this node belong to this Allocator. It works
// without fairlead-controller.
package allocator

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/internal/netaddr"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/ipam/pool"
)

// DefaultCooling is how long a released address is not allocated again.
const DefaultCooling = 30 * time.Second

// Config is the configuration of an Allocator.
type Config struct {
	Store allocation.Store
	// Node is this node's name.
	Node string
	// Cooling is how long a released address is not allocated again unless the pool is exhausted. 0: no cooling.
	Cooling time.Duration
	// Probe checks for conflicts on the wire. Nil: no check.
	Probe Probe
	// MAC returns the MAC of the pod with an address, so that its replies are not taken for a conflict. Nil: unknown.
	MAC func(Address) api.MAC
	// InUse checks whether an address without an allocation in the store is used on this node. Nil: unknown.
	InUse InUse
	// FreeMap returns the controller's current free map of a pool. Nil: that of the request is used.
	FreeMap func(pool string) (pool.FreeMap, bool)
	Log     logr.Logger
}

// Probe checks on the wire whether another host uses an address that is about to be allocated, and which. An error
// means that the check failed, and fails the Allocate. The implementer reports conflicts to users.
type Probe func(context.Context, Address) (who api.MAC, found bool, err error)

// InUse returns the lost allocation of that name, after trying to restore it, if the node knows of an owner that still
// has the address; else nil. An error fails the Allocate.
type InUse func(ctx context.Context, name string) (*api.IPAllocation, error)

// Address is an allocated address.
type Address struct {
	// Prefix is the address with the length of its subnet.
	Prefix  netip.Prefix
	Gateway netip.Addr
	// VLAN is the tag on the wire; 0 is untagged.
	VLAN uint16
	// Pool is the IPPool's name, and Scope its isolated network.
	Pool, Scope string
	// MAC is the MAC that is reserved with the address; zero if none is.
	MAC api.MAC
}

// Request is what one interface of a pod asks for.
type Request struct {
	// Pools are the pools to allocate from, one address of each family that is among them. The next pool of a family is
	// tried when the previous one is exhausted. All addresses are in one VLAN.
	Pools []pool.Pool
	// PodIPs are at most one address of each family. In these families exactly these addresses are allocated, or none.
	PodIPs []netip.Addr
	// Owner is the owner of the addresses. The Allocator sets Node.
	Owner api.AllocationOwner
	// Keep, if set, requests a reservation and says for which object: addresses that are already reserved for it are
	// allocated to the owner.
	Keep *api.AllocationReservation

	// reserved are the existing reservations, and mac the MAC that is reserved.
	reserved []api.IPAllocation
	mac      api.MAC
}

// Allocator allocates addresses to the pods of one node. Its methods may be called concurrently, but not for one owner.
type Allocator struct {
	Config
	held *held

	mu sync.Mutex
	// next is where to look for the next free address of a pool, by pool name.
	next map[string]netip.Addr
	// spare are the remaining candidates of the last list of a pool.
	spare map[part]spare
	full  fullPools
}

// New returns an Allocator. It sends no request.
func New(c Config) *Allocator {
	return &Allocator{Config: c, held: newHeld(), next: map[string]netip.Addr{}, spare: map[part]spare{},
		full: newFullPools()}
}

// given is an address that is being allocated to an owner.
type given struct {
	Address
	allocation api.IPAllocation
	// created: the owner did not have it before.
	created bool
	// reserved: it was reserved for the owner.
	reserved bool
}

// Allocate allocates addresses to the owner, IPv4 first. Addresses that the owner holds already are returned again.
// After an error the owner holds nothing that it did not hold before. Errors are *ExhaustedError, *PodIPError,
// *VLANError, *StickyError, or those of the store, the probe and ctx.
func (a *Allocator) Allocate(ctx context.Context, r Request) ([]Address, error) {
	r.Owner.Node = a.Node
	if err := r.check(); err != nil {
		return nil, err
	}
	r.Pools = r.shared()
	for n := 1; ; n++ {
		out, err := a.allocate(ctx, r)
		if r.Keep == nil || n == reservedTries || ctx.Err() != nil || !changed(err) {
			return out, err
		}
	}
}

// reservedTries is how often an Allocate is retried that lost a race for a reserved address. After that the runtime
// retries the ADD.
const reservedTries = 10

// changed reports whether a race with another writer was lost.
func changed(err error) bool {
	return errors.Is(err, allocation.ErrConflict) || errors.Is(err, allocation.ErrNotFound)
}

func (a *Allocator) allocate(ctx context.Context, r Request) ([]Address, error) {
	before, err := a.held.of(ctx, a.Store, r.Owner)
	if err != nil {
		return nil, err
	}
	if err := a.readReservations(ctx, &r); err != nil {
		return nil, err
	}
	var got []given
	for _, family := range r.families() {
		g, err := a.oneOf(ctx, family, r, before, got)
		if err != nil {
			return nil, errors.Join(err, a.undo(ctx, got))
		}
		got = append(got, g)
	}
	if err := a.replaceReservations(ctx, r, got); err != nil {
		return nil, errors.Join(err, a.undo(ctx, got))
	}
	slices.SortFunc(got, func(a, b given) int {
		return cmp.Compare(netaddr.Family(a.Prefix.Addr()), netaddr.Family(b.Prefix.Addr()))
	})
	var out []Address
	for _, g := range got {
		a.held.add(g.allocation)
		g.MAC = r.mac
		out = append(out, g.Address)
		if g.created {
			a.Log.Info("allocated address", "address", g.Prefix, "pool", g.Pool, "vlan", g.VLAN, "owner", r.Owner.String())
		}
	}
	return out, nil
}

// check rejects invalid requests.
func (r Request) check() error {
	if r.Owner.ContainerID == "" || r.Owner.IfName == "" {
		return errors.New("allocating an address: the owner has no container ID or no interface")
	}
	if len(r.Pools) == 0 {
		return errors.New("allocating an address: no IPPool is named")
	}
	for i, addr := range r.PodIPs {
		if !slices.ContainsFunc(r.Pools, func(p pool.Pool) bool { return p.Family == netaddr.Family(addr) }) {
			return &PodIPError{Address: addr, Reason: "is of another family than " + names(r.Pools) +
				": name a pool that has it, or remove it"}
		}
		for _, other := range r.PodIPs[:i] {
			if netaddr.Family(other) == netaddr.Family(addr) {
				return &PodIPError{Address: addr, Reason: "is the second of its family, after " + other.String() +
					": a pod has one IPv4 and one IPv6 address at most. Remove one"}
			}
		}
	}
	return nil
}

// families are those of the pools, in the order in which they are allocated: a requested address fixes the VLAN, so its
// family comes first.
func (r Request) families() []int {
	var out []int
	for _, f := range []int{4, 6} {
		if len(r.poolsOf(f)) > 0 {
			out = append(out, f)
		}
	}
	if len(out) == 2 && !r.podIP(4).IsValid() && r.podIP(6).IsValid() {
		slices.Reverse(out)
	}
	return out
}

func (r Request) poolsOf(f int) []pool.Pool {
	return slices.DeleteFunc(slices.Clone(r.Pools), func(p pool.Pool) bool { return p.Family != f })
}

// podIP is the requested address of a family, if any.
func (r Request) podIP(f int) netip.Addr {
	for _, addr := range r.PodIPs {
		if netaddr.Family(addr) == f {
			return addr
		}
	}
	return netip.Addr{}
}

// oneOf allocates one address of a family. before are the addresses that the owner holds already, and got its addresses
// of the other family.
func (a *Allocator) oneOf(
	ctx context.Context, f int, r Request, before []api.IPAllocation, got []given) (given, error) {
	pools := r.poolsOf(f)
	if len(got) > 0 {
		var err error
		if pools, err = inVLAN(pools, got[0].VLAN); err != nil {
			return given{}, err
		}
	}
	want := r.podIP(f)
	if g, ok, err := a.reuse(ctx, pools, want, r.Owner, before); ok || err != nil {
		return g, err
	}
	if len(r.reserved) > 0 {
		if g, ok, err := a.tryReserved(ctx, f, pools, want, r); ok || err != nil {
			return g, err
		}
	}
	if want.IsValid() {
		return a.exactly(ctx, want, pools, r)
	}
	full := &ExhaustedError{}
	for _, p := range pools {
		g, err := a.anyOf(ctx, p, r)
		exhausted := (*ExhaustedError)(nil)
		if !errors.As(err, &exhausted) {
			return g, err
		}
		full.Pools = append(full.Pools, exhausted.Pools...)
	}
	return given{}, full
}

// shared are the pools restricted to VLANs in which the other family has addresses too; unrestricted if the families
// have no VLAN in common, or if a requested address fixes the VLAN.
func (r Request) shared() []pool.Pool {
	of := map[int][]uint16{}
	for _, p := range r.Pools {
		for _, in := range p.Ranges {
			of[p.Family] = append(of[p.Family], in.VLAN)
		}
	}
	common := slices.DeleteFunc(slices.Clone(of[4]), func(v uint16) bool { return !slices.Contains(of[6], v) })
	if len(common) == 0 || len(r.PodIPs) > 0 {
		return r.Pools
	}
	return parts(r.Pools, common...)
}

// parts restricts pools to some VLANs.
func parts(pools []pool.Pool, vlans ...uint16) []pool.Pool {
	var out []pool.Pool
	for _, p := range pools {
		if in := p.InVLAN(vlans...); in.Total() > 0 {
			out = append(out, in)
		}
	}
	return out
}

// inVLAN restricts pools to one VLAN.
func inVLAN(pools []pool.Pool, vlan uint16) ([]pool.Pool, error) {
	out := parts(pools, vlan)
	if len(out) == 0 {
		return nil, &VLANError{Pool: pools[0].Name, Want: vlan}
	}
	return out, nil
}

// reuse returns what the owner holds already, if the store still says so. The owner's details are updated to those of
// this request: a restarted container has the same ID and another network namespace, maybe in another boot.
func (a *Allocator) reuse(ctx context.Context, pools []pool.Pool, want netip.Addr, o api.AllocationOwner,
	before []api.IPAllocation) (given, bool, error) {
	for _, b := range before {
		addr, err := netip.ParseAddr(b.Spec.Address)
		if err != nil || want.IsValid() && addr != want {
			continue
		}
		i := slices.IndexFunc(pools, func(p pool.Pool) bool { return p.Name == b.Spec.Pool && p.Contains(addr) })
		if i < 0 {
			continue
		}
		now, err := a.Store.Get(ctx, b.Name)
		if errors.Is(err, allocation.ErrNotFound) {
			continue
		}
		if err != nil {
			return given{}, false, err
		}
		if now.UID != b.UID || !holds(now, o) {
			continue
		}
		if now.Spec.Owner != o {
			now.Spec.Owner = o
			if now, err = a.Store.Update(ctx, now); err != nil {
				return given{}, false, err
			}
		}
		return given{Address: address(pools[i], addr), allocation: now}, true, nil
	}
	return given{}, false, nil
}

// address is the Address of addr in p.
func address(p pool.Pool, addr netip.Addr) Address {
	r, _ := p.RangeOf(addr)
	return Address{Prefix: netip.PrefixFrom(addr, r.Bits), Gateway: r.Gateway, VLAN: r.VLAN, Pool: p.Name, Scope: p.Scope}
}

// undoTimeout bounds the release of addresses after a failed Allocate, whose own context may have expired.
const undoTimeout = 5 * time.Second

// undo releases the new allocations of got. They were never in use, so they need not cool.
func (a *Allocator) undo(ctx context.Context, got []given) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	var errs []error
	for _, g := range got {
		if g.created {
			errs = append(errs, a.undoOne(ctx, g.allocation))
		}
	}
	return errors.Join(errs...)
}

// undoOne releases an address unless it has another owner by now. It reads the store first, because it may be unknown
// whether the address was allocated.
func (a *Allocator) undoOne(ctx context.Context, taken api.IPAllocation) error {
	for {
		now, err := a.Store.Get(ctx, taken.Name)
		if err == nil {
			if !holds(now, taken.Spec.Owner) {
				return nil
			}
			if err = allocation.Free(ctx, a.Store, now, 0); err == nil {
				a.full.forget(now.Spec.Pool)
			}
		}
		switch {
		case err == nil, errors.Is(err, allocation.ErrNotFound):
			return nil
		case errors.Is(err, allocation.ErrConflict):
			continue
		}
		// The DEL that follows will read it from the store.
		a.held.markUncertain(taken.Spec.Owner)
		return err
	}
}
