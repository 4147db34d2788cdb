// Package reclaim has the rules by which an address is released without a DEL. It considers IPAllocations in phase
// Allocated.
//
// An owner is a container on a node, never a name. It fails closed: what is unknown is in use. An address is reclaimed
// when its owner was found gone by two checks, at least a grace period apart, and when the same allocation, of the same
// UID and resourceVersion, still exists at a final check. Whether an owner is alive is known from two sources:
//
//   - the node itself, as long as it exists (node.go): its agent sees interfaces, records and network namespaces, and
//     knows its boot ID;
//   - the API server, for nodes that will not report any more (cluster.go): the Node is deleted, or is fenced, and the
//     Pod is gone as well. fairlead-controller checks this.
//
// Between the two nothing is reclaimed: a Node that is not ready keeps its addresses.
package reclaim

import (
	"time"

	"github.com/fairlead-cni/fairlead/api"
)

// Suspect is an allocation whose owner appears to be gone.
type Suspect struct {
	api.IPAllocation
	// Why is the reason. Another reason is another suspicion.
	Why string
}

// Tracker remembers since when owners have appeared to be gone. The zero value is ready to use.
type Tracker struct{ since map[string]suspicion }

// suspicion is the first check that found an owner gone, and the version of the allocation then.
type suspicion struct {
	uid, version, why string
	at                time.Duration
}

// Due takes all suspects found at the time now, and returns those that have been suspect in every call for at least
// grace. One that was changed since, or has another reason, starts again. now is monotonic: the time since the process
// started.
func (t *Tracker) Due(now, grace time.Duration, suspects []Suspect) (due []Suspect) {
	before := t.since
	t.since = make(map[string]suspicion, len(suspects))
	for _, s := range suspects {
		seen := suspicion{uid: string(s.UID), version: s.ResourceVersion, why: s.Why, at: now}
		if b, ok := before[s.Name]; ok && b.uid == seen.uid && b.version == seen.version && b.why == seen.why {
			seen.at = b.at
			if now-b.at >= grace {
				due = append(due, s)
			}
		}
		t.since[s.Name] = seen
	}
	return due
}

// Any reports whether there are suspects.
func (t *Tracker) Any() bool { return len(t.since) > 0 }
