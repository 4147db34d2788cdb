package reclaim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/allocator"
)

// OwnerState is the state of one owner on the node.
type OwnerState struct {
	// Interface: the owner's interface exists. Record: an attachment is on record, readable or not. Pods for which
	// Fairlead is only the IPAM plugin, as with macvlan, have neither, and are alive.
	Interface, Record bool
	// NetnsGone: the owner's network namespace existed and no longer does. False as well if that is unknown.
	NetnsGone bool
	// BootID is the node's.
	BootID string
}

// Gone returns why nothing on the node can use what o holds; empty if something may.
func (s OwnerState) Gone(o api.AllocationOwner) (why string) {
	switch {
	case s.Interface || s.Record:
		return ""
	case o.BootID != "" && s.BootID != "" && o.BootID != s.BootID:
		return "its node has rebooted since"
	case s.NetnsGone:
		return "its network namespace is gone"
	}
	return ""
}

// Node reclaims what owners on one node that are gone hold. It must be used by one goroutine.
type Node struct {
	Allocator *allocator.Allocator
	// State returns the state of an owner.
	State func(api.AllocationOwner) (OwnerState, error)
	// Lock blocks requests of the owner until unlock. ok is false if one is in progress.
	Lock  func(api.AllocationOwner) (unlock func(), ok bool)
	Grace time.Duration
	// Clock is the time since the process started.
	Clock func() time.Duration

	tracker Tracker
}

// Suspicious reports whether an owner appears to be gone, or did at the last check. It checks only the node: instead of
// reading the store, it uses what the allocator remembers.
func (n *Node) Suspicious() (bool, error) {
	if n.tracker.Any() {
		return true, nil
	}
	suspects, err := n.suspects(n.Allocator.Known())
	return len(suspects) > 0, err
}

// Reclaim takes what the node holds, as the store has it now, and reclaims what is due. It returns what it released,
// also with an error.
func (n *Node) Reclaim(ctx context.Context, held []api.IPAllocation) (freed []Suspect, err error) {
	suspects, err := n.suspects(held)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, s := range n.tracker.Due(n.Clock(), n.Grace, suspects) {
		done, err := n.free(ctx, s)
		if done {
			freed = append(freed, s)
		}
		errs = append(errs, err)
	}
	return freed, errors.Join(errs...)
}

func (n *Node) suspects(held []api.IPAllocation) ([]Suspect, error) {
	var out []Suspect
	for _, h := range held {
		state, err := n.State(h.Spec.Owner)
		if err != nil {
			return nil, err
		}
		if why := state.Gone(h.Spec.Owner); why != "" {
			out = append(out, Suspect{h, why})
		}
	}
	return out, nil
}

// free checks again, now that no request of the owner is in progress.
func (n *Node) free(ctx context.Context, s Suspect) (done bool, err error) {
	unlock, ok := n.Lock(s.Spec.Owner)
	if !ok {
		return false, nil
	}
	defer unlock()
	state, err := n.State(s.Spec.Owner)
	if err != nil || state.Gone(s.Spec.Owner) == "" {
		return false, err
	}
	done, err = n.Allocator.ReleaseOrphaned(ctx, s.IPAllocation)
	if err != nil {
		return false, fmt.Errorf("reclaiming the address of a pod that is gone: %w", err)
	}
	return done, nil
}
