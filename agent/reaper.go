package agent

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

const (
	// quiet is for how long no CNI request has been at work when ports are removed: that holds up the flows of others.
	quiet = 20 * time.Millisecond
	// reapWait is how long a port that is retired waits for that.
	reapWait = time.Second
)

// reaper removes the ports of pods that are gone, and then their veths, which go together in the time that the kernel
// takes for one. What it can't remove, and what it leaves when it ends, the reconciler does, of this agent or of the
// next.
type reaper struct {
	db      *ovsdb.DB
	bridge  string
	waiting chan struct{} // of one: any number may wait

	mu      sync.Mutex
	retired map[string]bool // host ends that clear has not removed yet, of those that this process has retired
	working sync.Mutex      // held by clear
}

func newReaper(db *ovsdb.DB, bridge string) *reaper {
	return &reaper{db: db, bridge: bridge, waiting: make(chan struct{}, 1), retired: map[string]bool{}}
}

// wake tells that a port and its veth were retired.
func (r *reaper) wake(host string) {
	r.mu.Lock()
	r.retired[host] = true
	r.mu.Unlock()
	select {
	case r.waiting <- struct{}{}:
	default:
	}
}

// run removes until ctx ends, when b is quiet.
func (r *reaper) run(ctx context.Context, b *busy, log logr.Logger) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.waiting:
		}
		for limit := time.Now().Add(reapWait); !b.quiet() && time.Now().Before(limit) && ctx.Err() == nil; {
			time.Sleep(quiet / 4)
		}
		if err := r.clear(ctx); err != nil && ctx.Err() == nil {
			log.Error(err, "it is tried again within seconds")
		}
	}
}

// free returns when nobody has the name of the host end any more. Whoever makes a new one calls it first, or
// ovs-vswitchd may take the new interface for the one before.
func (r *reaper) free(ctx context.Context, host string) error {
	r.mu.Lock()
	waits := r.retired[host]
	r.mu.Unlock()
	if !waits {
		return nil
	}
	return r.clear(ctx)
}

// clear removes all that is retired, also what another process has left.
func (r *reaper) clear(ctx context.Context) error {
	r.working.Lock()
	defer r.working.Unlock()
	r.mu.Lock()
	going := maps.Clone(r.retired)
	r.mu.Unlock()
	// The veths in any case: an ovs-vswitchd that does not answer complains of them at most.
	if err := errors.Join(r.db.RemoveRetired(ctx, r.bridge), link.Reap()); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.retired, func(host string, _ bool) bool { return going[host] })
	return nil
}
