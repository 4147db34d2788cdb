// Package reclaim holds the rules by which an address is given back that nobody asked to give back. Everything it takes
// for its own are IPAllocations in phase Allocated.
//
// An owner is a container on a node, never a name. What is not known is in use. An address is freed when its owner has
// looked gone twice, at least a grace period apart, and when the same allocation, of the same UID and resourceVersion,
// is still there at a last look. Who lives is told by two witnesses:
//
//   - the node itself, as long as it is there (node.go): its agent sees interfaces, records and network namespaces, and
//     knows which boot it is;
//   - the API server, of nodes that will not tell any more (cluster.go): the Node is deleted, or is fenced, and the Pod
//     is gone as well. fairlead-controller asks it.
//
// Between the two nothing is freed: a Node that is not ready keeps its addresses.
package reclaim

import (
	"time"

	"github.com/fairlead-cni/fairlead/api"
)

// Suspect is an allocation whose owner looks gone.
type Suspect struct {
	api.IPAllocation
	// Why says what makes it look so. Another reason is another suspicion.
	Why string
}

// Looks remembers since when allocations look as if nobody had them. The zero value is ready.
type Looks struct{ since map[string]look }

// look is the first time that an allocation looked so, and which one it was.
type look struct {
	uid, version, why string
	at                time.Duration
}

// Again takes all allocations that look gone at the time now, and returns those that have looked so at every call since
// grace ago or longer. One that was changed since, or looks so for another reason, is looked at for the first time.
// now is of a clock that nobody sets: the time since the process began.
func (l *Looks) Again(now, grace time.Duration, suspects []Suspect) (due []Suspect) {
	before := l.since
	l.since = make(map[string]look, len(suspects))
	for _, s := range suspects {
		seen := look{uid: string(s.UID), version: s.ResourceVersion, why: s.Why, at: now}
		if b, ok := before[s.Name]; ok && b.uid == seen.uid && b.version == seen.version && b.why == seen.why {
			seen.at = b.at
			if now-b.at >= grace {
				due = append(due, s)
			}
		}
		l.since[s.Name] = seen
	}
	return due
}

// Any tells whether anything looks gone.
func (l *Looks) Any() bool { return len(l.since) > 0 }
