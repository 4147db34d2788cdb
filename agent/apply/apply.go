// Package apply brings the node to the desired state, with one applier for each kind of resource. Each observes,
// compares with the desired state, applies the difference, and reports which changes were wanted and which revert an
// external change. Each recognises Fairlead's resources from what it observes (datapath/doc.go has the list), so that
// an agent with an empty memory can take over; what an applier remembers (what it applied last) only saves work.
package apply

import (
	"context"

	"github.com/fairlead-cni/fairlead/agent/desired"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
)

// Applier applies one part of the desired state. One goroutine uses it.
type Applier interface {
	// Name is the applier's label in logs and metrics.
	Name() string
	// Apply applies its part of r.Want. After an error, or if ctx ended, it may be applied in part; the next Apply
	// continues from there. Changes are what was done, also with an error.
	Apply(ctx context.Context, r *Round) (Changes, error)
}

// Round is one pass over the node: one value that goes from applier to applier.
type Round struct {
	Want desired.State
	// Observed is what OVSDB had before the round; the flow applier replaces it when the ports have their numbers.
	Observed ovsdb.Observed
	// Verify asks to observe everything, even if all that is desired is believed to be in place.
	Verify bool
	// Settled: the previous round applied all that pods depend on, with the ovs-vswitchd that still runs. If the desired
	// state has not changed since, whatever an applier has to do reverts an external change.
	Settled bool
	// Added and Removed are the ports of the pods that the round adds and releases.
	Added, Removed []string
}

// Changes are what an Apply did, one sentence each.
type Changes struct {
	Wanted   []string // because the desired state has changed
	Repaired []string // to revert external changes
	// Degraded says what does not work and can't be repaired here; nil if all works.
	Degraded error
}

// sorted returns changes as Repaired if drift is set, as they revert external ones, else as Wanted.
func sorted(changes []string, drift bool) Changes {
	if drift {
		return Changes{Repaired: changes}
	}
	return Changes{Wanted: changes}
}

// Watcher is an Applier that may need a round.
type Watcher interface {
	Applier
	// NeedsVerify reports, as a round begins, whether everything has to be verified.
	NeedsVerify(obs ovsdb.Observed) bool
	// InPlace reports whether OVSDB, which has changed, still has what the last round wrote, and requires nothing else.
	InPlace(ctx context.Context, obs ovsdb.Observed) bool
	// Due reports whether a round is needed although nothing that is watched has changed. It is called every Guard
	// (api.AgentIntervals), and when work in parallel to the rounds has ended.
	Due() bool
}
