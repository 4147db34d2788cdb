package attachments

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
)

// reapWait is how long a port that is retired waits until no request is at work: its removal holds up the flows of
// others.
const reapWait = time.Second

// Reaper removes the ports of pods that are gone, and then their veths, which go together in the time that the kernel
// takes for one. Nothing is done to a veth before: at each change of an interface ovs-vswitchd looks at all its ports.
// What it can't remove, and what it leaves when it ends, the reconciler does, of this agent or of the next.
type Reaper struct {
	db      *ovsdb.DB
	bridge  string
	waiting chan struct{} // of one: any number may wait

	mu      sync.Mutex
	retired map[string]bool // host ends that this process has retired, and Clear has not removed yet
	working sync.Mutex      // held by Clear
}

func newReaper(db *ovsdb.DB, bridge string) *Reaper {
	return &Reaper{db: db, bridge: bridge, waiting: make(chan struct{}, 1), retired: map[string]bool{}}
}

// Wake says that a port was retired, or that there is none, and that its veth is not needed.
func (r *Reaper) Wake(host string) {
	r.mu.Lock()
	r.retired[host] = true
	r.mu.Unlock()
	select {
	case r.waiting <- struct{}{}:
	default:
	}
}

// Has reports whether the host end waits to be removed.
func (r *Reaper) Has(host string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.retired[host]
}

// Run removes until ctx ends, when no request is at work.
func (r *Reaper) Run(ctx context.Context, l *Locks, log logr.Logger) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.waiting:
		}
		l.awaitQuiet(ctx, reapWait)
		if err := r.Clear(ctx); err != nil && ctx.Err() == nil {
			log.Error(err, "removing ports and veths of released pods; retried within seconds")
		}
	}
}

// Clear removes all that is retired, also what another process has left.
func (r *Reaper) Clear(ctx context.Context) error {
	r.working.Lock()
	defer r.working.Unlock()
	r.mu.Lock()
	going := maps.Clone(r.retired)
	r.mu.Unlock()
	removed, err := r.db.RemoveRetired(ctx, r.bridge)
	for _, host := range removed {
		going[host] = true
	}
	// The veths in any case: an ovs-vswitchd that does not answer complains of them at most.
	errs := []error{err}
	for host := range going {
		errs = append(errs, link.Retire(host))
	}
	errs = append(errs, link.Reap())
	if err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		maps.DeleteFunc(r.retired, func(host string, _ bool) bool { return going[host] })
	}
	return errors.Join(errs...)
}
