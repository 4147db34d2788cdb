package addresses

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fairlead-cni/fairlead/agent/attachments"
	"github.com/fairlead-cni/fairlead/agent/events"
	"github.com/fairlead-cni/fairlead/agent/signal"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/cniserver"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/ipam/reclaim"
)

// doubtfulFor is how long there may be an allocation that the agent has not seen, after a reply of the API server got
// lost or while a request of the previous agent is in flight: longer than an API server works on a request.
const doubtfulFor = 2 * time.Minute

// reconciler compares this node's allocations with what is on the node. Except for trigger, only Reconcile uses it.
type reconciler struct {
	reclaim.Node
	every         api.AgentIntervals
	began, readAt time.Time
	outages       int // of the API server, at the last check
	now           atomic.Bool
	wake          signal.Signal // gets a value when Reconcile is to run now
}

func (p *Addresses) newReconciler() {
	w := &p.reconciler
	w.every, w.began, w.wake = p.Intervals, time.Now(), signal.New()
	w.Node = reclaim.Node{Allocator: p.allocator, State: p.ownerState, Lock: p.lockOwner, Grace: p.Intervals.SuspectGrace,
		Clock: func() time.Duration { return time.Since(w.began) }}
}

// lockOwner locks out requests for the owner's interface.
func (p *Addresses) lockOwner(o api.AllocationOwner) (unlock func(), ok bool) {
	host := attachments.HostOf(o)
	return func() { p.Registry.Locks.Unlock(host) }, p.Registry.Locks.TryLock(host)
}

// trigger makes Reconcile compare allocations with the node now.
func (w *reconciler) trigger() {
	w.now.Store(true)
	w.wake.Notify()
}

// due reports whether the store is to be read; server says that the store is the API server. After an outage it may
// have lost allocations, as when etcd was restored from a backup.
func (w *reconciler) due(server bool, outages int) (bool, error) {
	every := w.every.Allocations
	if w.Allocator.InDoubt(doubtfulFor) || time.Since(w.began) < doubtfulFor {
		every = w.every.DoubtfulAllocations
	}
	if w.now.Swap(false) || !server || w.outages != outages || time.Since(w.readAt) > every {
		return true, nil
	}
	return w.Suspicious()
}

// Reconcile compares this node's allocations with what is on it. The node has the best evidence about its own pods: see
// package reclaim. An allocation that a living pod has lost is restored.
func (p *Addresses) Reconcile(ctx context.Context) error {
	snapshot := p.Source.Snapshot()
	if snapshot.Trouble != nil {
		return nil // nothing is known without the API server, which is reported elsewhere
	}
	errs := []error{p.releaseAllDeferred(ctx)}
	w := &p.reconciler
	if due, err := w.due(p.Client != nil, snapshot.Outages); err != nil || !due {
		return errors.Join(append(errs, err)...)
	}
	// Allocations are read first: if an owner has no record after that, its ADD or DEL has had all of its duration to
	// write one.
	held, err := p.Held(ctx)
	if errors.Is(err, allocation.ErrNoKind) && !p.Config.EnableBridgingMode {
		held, err = nil, nil // there are no pools here
	}
	if err != nil {
		w.now.Store(true)
		return errors.Join(append(errs, fmt.Errorf("comparing allocations with the node: %w", err))...)
	}
	w.readAt, w.outages = time.Now(), snapshot.Outages
	restored := errors.Join(p.restoreAllocations(ctx, held), p.restoreSecondaries(ctx, held))
	if restored != nil { // retry as soon as a false owner is reclaimed, before another pod gets the address
		w.now.Store(true)
	}
	return errors.Join(append(errs, restored, p.reclaimAllocations(ctx, held))...)
}

// errReplaced says why no address is allocated for a while.
var errReplaced = errors.New("the data of the Kubernetes API server was replaced, as by a restored backup: addresses of " +
	"running pods may be missing from it until their nodes have recreated the allocations")

// allocationBlocked returns why no address of a pool may be allocated now; nil if one may.
func (p *Addresses) allocationBlocked() error {
	s := p.Source.Snapshot()
	if s.Away { // it is unknown which data it will have
		return s.Trouble
	}
	if until := s.Replaced.Add(p.Intervals.Replaced); time.Now().Before(until) {
		return fmt.Errorf("%w. Addresses are allocated again from %s", errReplaced, until.Format(time.TimeOnly))
	}
	return nil
}

func (p *Addresses) reclaimAllocations(ctx context.Context, held []api.IPAllocation) error {
	freed, err := p.reconciler.Reclaim(ctx, held)
	for _, s := range freed {
		o := s.Spec.Owner
		p.Log.Info("reclaimed the address of a deleted pod", "address", s.Spec.Address, "pool", s.Spec.Pool,
			"owner", o.String(), "containerID", o.ContainerID, "reason", s.Why)
		p.Metrics.Pods.Reclaimed.WithLabelValues("allocation").Inc()
		p.Events.WarnOwner(o, api.EventAddressReclaimed, fmt.Sprintf("address %s of IPPool %s was still allocated to container %s on node %s, but %s: it is reclaimed",
			s.Spec.Address, s.Spec.Pool, o.ContainerID, o.Node, s.Why))
	}
	return err
}

// ownerState returns what this node sees of an owner. It stops once the owner may be alive, and for an interface that
// another plugin created: that is neither on record nor among Fairlead's interfaces.
func (p *Addresses) ownerState(o api.AllocationOwner) (reclaim.OwnerState, error) {
	seen := reclaim.OwnerState{BootID: p.Registry.BootID, NetnsGone: netnsGone(o.Netns)}
	if o.IPAMOnly || seen.Gone(o) == "" {
		return seen, nil
	}
	hosts, err := p.Registry.Hosts()
	if err != nil {
		return seen, err
	}
	known, err := p.Registry.Records()
	if err != nil {
		return seen, err
	}
	host := attachments.HostOf(o)
	seen.Interface, seen.Record = slices.Contains(hosts, host), known.Has(host)
	return seen, nil
}

// netnsGone reports whether the network namespace that had this path is gone. That a process has ended proves nothing
// about its namespace, and if the directory does not exist, the agent may not see the host's.
func netnsGone(path string) bool {
	if path == "" || strings.HasPrefix(path, "/proc/") {
		return false
	}
	if _, err := os.Stat(filepath.Dir(path)); err != nil {
		return false
	}
	_, err := os.Stat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// restoreAllocations restores the allocations that living pods have lost: the object was deleted, or the cluster's
// database was emptied or restored.
func (p *Addresses) restoreAllocations(ctx context.Context, held []api.IPAllocation) error {
	known, err := p.Registry.Records()
	if err != nil {
		return err
	}
	hosts, err := p.Registry.Hosts()
	if err != nil {
		return err
	}
	has := map[string]bool{} // address and host end
	for _, h := range held {
		has[h.Spec.Address+" "+attachments.HostOf(h.Spec.Owner)] = true
	}
	var errs []error
	for host, a := range known.Pods {
		if !a.Bridged || !p.Registry.Alive(a.Attachment, hosts) {
			continue
		}
		for i, addr := range a.Addrs {
			if !has[addr.Addr().String()+" "+host] {
				errs = append(errs, p.restoreAllocation(ctx, a, i))
			}
		}
	}
	return errors.Join(errs...)
}

// restoreAllocation restores the allocation of the pod's address i, unless the pod was deleted meanwhile.
func (p *Addresses) restoreAllocation(ctx context.Context, a ovsdb.PodPort, i int) error {
	if !p.Registry.Locks.TryLock(a.HostIf) {
		return nil
	}
	defer p.Registry.Locks.Unlock(a.HostIf)
	known, err := p.Registry.Records()
	if err != nil {
		return err
	}
	if now, there := known.Pods[a.HostIf]; !there || i >= len(now.Pools) || !now.Equal(a.Attachment) {
		return nil
	}
	addr, o := a.Addrs[i].Addr(), p.Owner(a.Attachment)
	lost, err := p.allocator.Restore(ctx, o, a.Pools[i], "", addr, p.reservationOf(ctx, a.Attachment))
	if err != nil {
		p.Events.WarnOwner(o, events.ReasonDuplicate, fmt.Sprintf("%v. Delete one of the two pods", err))
		return fmt.Errorf("the allocation of pod %s was lost and cannot be restored: %w", a.Pod(), err)
	}
	if !lost {
		return nil
	}
	p.Log.Info("recreated a lost allocation", "pod", a.Pod(), "address", addr, "pool", a.Pools[i])
	p.Metrics.Pods.Reclaimed.WithLabelValues("lost_allocation").Inc()
	return nil
}

// Check returns an error if, according to the API server, a pod's address is not its own. No answer is not an error.
func (p *Addresses) Check(ctx context.Context, a api.Attachment) error {
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	for _, addr := range a.Addrs {
		name := allocation.Name("", addr.Addr())
		h, err := p.store.Get(ctx, name)
		switch {
		case errors.Is(err, allocation.ErrNotFound):
			return fmt.Errorf("the IPAllocation %s is gone: it is restored within %s", name, p.Intervals.Allocations)
		case err == nil && (h.Spec.Phase != api.PhaseAllocated || attachments.HostOf(h.Spec.Owner) != a.HostIf):
			return fmt.Errorf("address %s belongs to %s (%s)", addr.Addr(), h.Spec.Owner, h.Spec.Phase)
		}
	}
	return nil
}

// Orphaned are the allocations in a network whose containers are not among valid, which the runtime lists. It returns
// none if the API server is unreachable: that is left to Reconcile.
func (p *Addresses) Orphaned(ctx context.Context, network string, valid map[attachments.Key]bool) (
	[]api.IPAllocation, error) {
	if !p.Config.EnableBridgingMode || p.Source.Snapshot().Trouble != nil {
		return nil, nil
	}
	held, err := p.Held(ctx)
	if err != nil {
		return nil, cniserver.TryAgainLater(fmt.Errorf("looking for orphaned addresses: %w", err))
	}
	return slices.DeleteFunc(held, func(h api.IPAllocation) bool {
		o := h.Spec.Owner
		return o.IPAMOnly || o.Network != network || valid[attachments.Key{ContainerID: o.ContainerID, IfName: o.IfName}]
	}), nil
}

// Wake receives when Reconcile has something to do now.
func (p *Addresses) Wake() <-chan struct{} { return p.reconciler.wake }
