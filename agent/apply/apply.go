// Package apply brings the node to what is desired: one applier for each kind of thing that Fairlead puts there. Each
// observes, compares with what is wanted, and does the difference, and says which changes were wanted and which revert
// an external change. What is ours each recognises from what it observes (datapath/doc.go has the list), so that an
// agent with an empty memory can take over; what an applier remembers (what it put in place last) saves work only.
package apply

import (
	"context"

	"github.com/fairlead-cni/fairlead/agent/desired"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
)

// Applier applies one part of what is desired. One goroutine uses it.
type Applier interface {
	// Name is the applier's label in logs and metrics.
	Name() string
	// Apply puts its part of r.Want in place. After an error, or when ctx ended it, part of it may be; the next Apply
	// goes on from there. Changes are what was done, also with an error.
	Apply(ctx context.Context, r *Round) (Changes, error)
}

// Round is one pass over the node: one value that goes from applier to applier.
type Round struct {
	Want desired.State
	// Observed is what OVSDB had before the round; the applier of flows replaces it when the ports have their numbers.
	Observed ovsdb.Observed
	// Verify asks to observe everything, though nothing else may be wanted than is in place as far as is known.
	Verify bool
	// Settled: the round before put in place all that pods depend on, with the ovs-vswitchd that still runs. What an
	// applier then has to do though nothing else is wanted reverts an external change.
	Settled bool
	// Added and Removed are the ports of the pods that the round adds and releases.
	Added, Removed []string
}

// Changes are what an Apply did, a sentence for each.
type Changes struct {
	Wanted   []string // because something else is wanted than before
	Repaired []string // to revert external changes
	// Degraded says what does not work and can't be repaired here; nil: nothing.
	Degraded error
}

// sorted puts changes where they belong: drift says whether they revert external ones.
func sorted(changes []string, drift bool) Changes {
	if drift {
		return Changes{Repaired: changes}
	}
	return Changes{Wanted: changes}
}

// Watcher is an Applier that has something to say between rounds.
type Watcher interface {
	Applier
	// Doubts reports, as a round begins, whether everything has to be verified.
	Doubts(obs ovsdb.Observed) bool
	// InPlace reports whether OVSDB, which has changed, still is as the last round left it, and asks for nothing else.
	InPlace(ctx context.Context, obs ovsdb.Observed) bool
	// Due reports whether a round has to be made though nothing that is followed has changed. It is asked
	// every Guard (api.AgentIntervals), and when something has ended that ran beside the rounds.
	Due() bool
}
