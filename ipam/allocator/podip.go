package allocator

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/pool"
)

// exactly allocates the requested address. It need not have cooled: most likely the same pod has come back.
func (a *Allocator) exactly(
	ctx context.Context, want netip.Addr, pools []pool.Pool, r Request) (given, error) {
	i := slices.IndexFunc(pools, func(p pool.Pool) bool { return p.Contains(want) })
	if i < 0 {
		return given{}, &PodIPError{Address: want, Reason: outside(want, pools)}
	}
	g, err := a.try(ctx, pools[i], want, r, true)
	var held *heldError
	if !errors.As(err, &held) {
		return g, err
	}
	holder := held.holder
	if holder.Spec.Phase == api.PhaseConflict {
		// A conflict mark is for requests that have a choice. Without one the wire is probed again.
		return given{}, &PodIPError{Address: want, Holder: &holder,
			Reason: fmt.Sprintf("is used by a host outside of the cluster, MAC %s: remove it there, or ask for another address", holder.Spec.MAC)}
	}
	if kept := holder.Spec.Reservation; kept != nil && holder.Spec.Phase == api.PhaseReserved {
		return given{}, &PodIPError{Address: want, Holder: &holder,
			Reason: fmt.Sprintf("is reserved for %s: ask for another address, or delete that %s", kept, kept.Kind)}
	}
	return given{}, &PodIPError{Address: want, Holder: &holder,
		Reason: fmt.Sprintf("is allocated to %s (%s): delete that pod, or ask for another address",
			holder.Spec.Owner, holder.Spec.Phase)}
}

// outside says why no pool has an address.
func outside(want netip.Addr, pools []pool.Pool) string {
	var why []string
	for _, p := range pools {
		if err := p.Check(want); err != nil {
			why = append(why, err.Error())
		}
	}
	return "cannot be allocated: " + strings.Join(why, "; ") + ". Ask for an address of " + names(pools)
}

// names are the names of the pools, for an error message.
func names(pools []pool.Pool) string {
	var out []string
	for _, p := range pools {
		out = append(out, p.Name)
	}
	if len(out) == 1 {
		return "pool " + out[0]
	}
	return "the pools " + strings.Join(out, ", ")
}
