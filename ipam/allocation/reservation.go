package allocation

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/api"
)

// Unreserve ends a reservation in one write: a pod that has the address keeps it, and it cools after its DEL; an
// address that no pod has cools now. Errors are those of Update and Delete: nothing was done if the allocation has
// changed since a was read.
func Unreserve(ctx context.Context, s Store, a api.IPAllocation, cooling time.Duration) error {
	a.Spec.Reservation = nil
	if a.Spec.Phase == api.PhaseReserved {
		return Free(ctx, s, a, cooling)
	}
	_, err := s.Update(ctx, a)
	return err
}

// Standing sorts the reservations for one pod in one family, where concurrent requests made several: the first counts,
// the others are released. First comes the one that a pod has, else the oldest, else the first by name, so that all
// replicas agree.
func Standing(list []api.IPAllocation) {
	slices.SortFunc(list, func(a, b api.IPAllocation) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			strings.Compare(a.Name, b.Name))
	})
}

func rank(a api.IPAllocation) int {
	if a.Spec.Phase == api.PhaseAllocated {
		return 0
	}
	return 1
}
