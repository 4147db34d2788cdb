package allocation

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/api"
)

// Unreserve ends that an address is kept, in one write: a pod that has it keeps it,
// and its DEL then lets it cool; where nobody has it, it cools now. Errors are those of
// Update and Delete: nothing was done if somebody has changed the allocation since a
// was read.
func Unreserve(ctx context.Context, s Store, a api.IPAllocation, cooling time.Duration) error {
	a.Spec.Reservation = nil
	if a.Spec.Phase == api.PhaseReserved {
		return Free(ctx, s, a, cooling)
	}
	_, err := s.Update(ctx, a)
	return err
}

// Standing sorts what is reserved for one pod in one family, where that is several
// (two made one at the same time): the first counts, the others are freed. It is what a
// pod has, else the oldest, else the first by name. Everybody who looks sees the same.
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
