package openflow

import (
	"context"
	"fmt"
	"slices"
)

// Differences are flows, in the syntax of "ovs-ofctl dump-flows".
type Differences struct {
	// Missing are wanted but not on the switch; Foreign are on it but not wanted.
	Missing, Foreign []string
}

// Compare lists the switch's flows and compares them with those in want, which are in the form of Flow.String. A flow
// altered by an external change is both missing and, as it is now, foreign. With a nil want it finds only foreign
// flows: those that package openflow cannot have written.
func (s *Switch) Compare(ctx context.Context, want []string) (Differences, error) {
	list, err := s.list(ctx)
	if err != nil {
		return Differences{}, fmt.Errorf("listing flows: %w", err)
	}
	return compare(list, want), nil
}

func compare(list []listed, want []string) Differences {
	var d Differences
	missing := map[string]bool{}
	for _, f := range want {
		missing[f] = true
	}
	for _, l := range list {
		text := l.flow.String()
		ours := !l.unsupported && !l.limited && l.cookie == l.flow.Cookie() && l.flow.Kind != 0
		switch {
		case ours && (missing[text] || want == nil || l.flow.ofService() || l.flow.ofPolicy() ||
			l.flow.Kind == KindRenewal):
			delete(missing, text) // Units are compared by Sync alone
		case ours:
			d.Foreign = append(d.Foreign, text)
		default:
			d.Foreign = append(d.Foreign, fmt.Sprintf("cookie=%#x, table=%d, %s", l.cookie, l.flow.Table, l.flow.text()))
		}
	}
	for f := range missing {
		d.Missing = append(d.Missing, f)
	}
	slices.Sort(d.Missing)
	slices.Sort(d.Foreign)
	return d
}
