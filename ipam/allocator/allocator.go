// Package allocator gives addresses of IPPools to bridged pods and takes them
// back. What is given is kept in an allocation.Store, where other nodes see it;
// allocations that name this node as their owner's are ours. It works without
// fairlead-controller.
package allocator

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/ipam/pool"
)

// DefaultCooling is how long an address that was given back is not handed out.
const DefaultCooling = 30 * time.Second

// Config is what an Allocator works with.
type Config struct {
	Store allocation.Store
	// Node is this node's name.
	Node string
	// Cooling is how long an address that was given back is not handed out
	// unless the pool is full. 0: not at all.
	Cooling time.Duration
	// Probe asks the wire. Nil: nobody is asked.
	Probe Probe
	Log   logr.Logger
}

// Probe asks the wire whether somebody uses an address that is about to be given,
// and who. An error means that it could not be asked, and ends the Allocate. The
// implementer tells users of what it found.
type Probe func(context.Context, Address) (who api.MAC, found bool, err error)

// Address is an address that was given.
type Address struct {
	// Prefix is the address with the length of its subnet.
	Prefix  netip.Prefix
	Gateway netip.Addr
	// VLAN is the tag on the wire; 0 is untagged.
	VLAN uint16
	// Pool is the IPPool's name, and Scope its isolated network.
	Pool, Scope string
}

// Request is what one interface of a pod wants.
type Request struct {
	// Pools give one address of each family that is among them. The next pool of
	// a family is tried when the one before is exhausted. All addresses are of
	// one VLAN.
	Pools []pool.Pool
	// PodIPs are at most one address of each family. Of these families exactly
	// these are given, or none.
	PodIPs []netip.Addr
	// Owner is whom the addresses are for. Node is set by the Allocator.
	Owner api.AllocationOwner
}

// Allocator gives addresses to the pods of one node. Its methods may be called at
// the same time.
type Allocator struct{}

// New returns an Allocator. It calls nobody.
func New(Config) *Allocator { return &Allocator{} }

// Allocate gives the owner its addresses, IPv4 first. What the owner holds
// already is the answer. After an error the owner holds nothing that it did not
// hold before. Errors are *ExhaustedError, *PodIPError, *VLANError,
// or those of the store and the probe, and of ctx.
func (a *Allocator) Allocate(ctx context.Context, r Request) ([]Address, error) {
	return nil, errors.New("addresses of IPPools are not given yet")
}

// Release gives back what the owner (by ContainerID, IfName and Network) holds. It
// succeeds when that is nothing. The addresses cool from then on.
func (a *Allocator) Release(ctx context.Context, o api.AllocationOwner) error {
	return errors.New("addresses of IPPools are not given yet")
}

// Held returns what owners on this node hold, as the store has it now.
func (a *Allocator) Held(ctx context.Context) ([]api.IPAllocation, error) {
	return nil, errors.New("addresses of IPPools are not given yet")
}
