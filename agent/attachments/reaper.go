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

// reapWait is how long a retired port waits until no request is in progress: its removal delays the flows of others.
const reapWait = time.Second

// Reaper removes the ports of deleted pods, and then their veths, all in the time that the kernel takes for one. A veth
// is not touched before: at each change of an interface, ovs-vswitchd examines all its ports. What the Reaper can't
// remove, or leaves when it ends, is left to the reconciler of this agent or of the next.
type Reaper struct {
	db      *ovsdb.DB
	bridge  string
	waiting chan struct{} // capacity 1: any number may wait

	mu      sync.Mutex
	retired map[string]bool // host ends that this process has retired, and Clear has not removed yet
	working sync.Mutex      // held by Clear
}

func newReaper(db *ovsdb.DB, bridge string) *Reaper {
	return &Reaper{db: db, bridge: bridge, waiting: make(chan struct{}, 1), retired: map[string]bool{}}
}

// Wake says that a port was retired, or does not exist, and that its veth is not needed.
func (r *Reaper) Wake(host string) {
	r.mu.Lock()
	r.retired[host] = true
	r.mu.Unlock()
	select {
	case r.waiting <- struct{}{}:
	default:
	}
}

// Has reports whether the host end is waiting to be removed.
func (r *Reaper) Has(host string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.retired[host]
}

// Run removes what is retired while no request is in progress, until ctx ends.
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
	// The veths are removed in any case: an ovs-vswitchd that does not answer at most logs warnings about them.
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
