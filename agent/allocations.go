package agent

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

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/cniserver"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/ipam/reclaim"
)

const (
	// allocationsEvery is how often what the node holds is read from the API server when nothing seems wrong: to find what
	// the agent does not know of. What it knows it compares with the node every reconcileEvery, at nobody's cost.
	allocationsEvery = 5 * time.Minute
	// doubtfulEvery is how often it is read while there may well be something: an answer of the API server got lost, or
	// the agent of before had a request on its way. doubtfulFor is longer than an API server works on one.
	doubtfulEvery = 30 * time.Second
	doubtfulFor   = 2 * time.Minute
	// graceOfSuspects is how long an allocation must look dead before it is freed.
	graceOfSuspects = 10 * time.Second
)

// witness compares this node's allocations with what is on the node. Only reconcile uses it, but for lookNow.
type witness struct {
	reclaim.Node
	began, looked time.Time
	now           atomic.Bool
	wake          chan struct{} // gets a value when it is to be looked now
}

func (p *pods) newWitness() {
	w := &p.bridged.witness
	w.began, w.wake = time.Now(), make(chan struct{}, 1)
	w.Node = reclaim.Node{Allocator: p.bridged.Allocator, See: p.see, Lock: p.lockOwner, Grace: graceOfSuspects,
		Clock: func() time.Duration { return time.Since(w.began) }}
}

// lockOwner keeps requests for the owner's interface away.
func (p *pods) lockOwner(o api.AllocationOwner) (unlock func(), ok bool) {
	host := hostOf(o)
	return func() { p.busy.done(host) }, p.busy.try(host)
}

// held are this node's allocations, as the store has them now. It waits for an API
// server no longer than a DEL does.
func (p *pods) held(ctx context.Context) ([]api.IPAllocation, error) {
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	return p.bridged.Held(ctx)
}

// lookNow has allocations compared with the node.
func (w *witness) lookNow() {
	w.now.Store(true)
	poke(w.wake)
}

// due tells whether the store is to be read. ask tells that it is the API server's.
func (w *witness) due(ask bool) (bool, error) {
	every := allocationsEvery
	if w.Allocator.InDoubt(doubtfulFor) || time.Since(w.began) < doubtfulFor {
		every = doubtfulEvery
	}
	if w.now.Swap(false) || !ask || time.Since(w.looked) > every {
		return true, nil
	}
	return w.Suspicious()
}

// reconcileAllocations compares this node's allocations with what is on it. The node
// is the first witness of its pods: see package reclaim. An allocation that a living
// pod has lost is made again.
func (p *pods) reconcileAllocations(ctx context.Context) error {
	if p.loop.source.Snapshot().Trouble != nil {
		return nil // without the API server nothing can be told, and the trouble is told elsewhere
	}
	errs := []error{p.settleAll(ctx)}
	w := &p.bridged.witness
	if due, err := w.due(p.loop.kube != nil); err != nil || !due {
		return errors.Join(append(errs, err)...)
	}
	// Allocations first: one whose owner is not on record a moment later had its
	// whole ADD or DEL to be so.
	held, err := p.held(ctx)
	if errors.Is(err, allocation.ErrNoKind) && !p.loop.cfg.EnableBridgingMode {
		held, err = nil, nil // nobody has asked for addresses of pools here
	}
	if err != nil {
		w.now.Store(true)
		return errors.Join(append(errs, fmt.Errorf("comparing allocations with the node: %w", err))...)
	}
	w.looked = time.Now()
	return errors.Join(append(errs, p.restoreAllocations(ctx, held), p.reclaimAllocations(ctx, held))...)
}

func (p *pods) reclaimAllocations(ctx context.Context, held []api.IPAllocation) error {
	freed, err := p.bridged.witness.TakeBack(ctx, held)
	for _, s := range freed {
		o := s.Spec.Owner
		p.log.Info("took back the address of a pod that is gone", "address", s.Spec.Address, "pool", s.Spec.Pool,
			"owner", o.String(), "container", o.ContainerID, "why", s.Why)
		p.metrics.reclaimed.WithLabelValues("allocation").Inc()
		p.warnOf(o, api.EventAddressReclaimed, fmt.Sprintf("address %s of IPPool %s was still held by container %s on node %s, "+
			"and %s: it is given back", s.Spec.Address, s.Spec.Pool, o.ContainerID, o.Node, s.Why))
	}
	return err
}

// see is what this node sees of an owner. It does not look for more of one that may live anyhow, nor of one whose
// interface another plugin made: that is neither on record nor among the interfaces of ours.
func (p *pods) see(o api.AllocationOwner) (reclaim.Sight, error) {
	sight := reclaim.Sight{BootID: p.bootID, NetnsGone: netnsGone(o.Netns)}
	if o.IPAMOnly || sight.Gone(o) == "" {
		return sight, nil
	}
	hosts, err := p.hosts()
	if err != nil {
		return sight, err
	}
	known, err := p.records()
	if err != nil {
		return sight, err
	}
	host := hostOf(o)
	sight.Interface, sight.Record = slices.Contains(hosts, host), known.has(host)
	return sight, nil
}

// netnsGone tells whether a network namespace is gone that had this path. That a process has ended says nothing of the
// namespace it had, and where the directory is not there the agent may not see the host's.
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

// restoreAllocations makes again what living pods have lost: somebody deleted the
// object, or the cluster's database was emptied or restored.
func (p *pods) restoreAllocations(ctx context.Context, held []api.IPAllocation) error {
	known, err := p.records()
	if err != nil {
		return err
	}
	hosts, err := p.hosts()
	if err != nil {
		return err
	}
	has := map[string]bool{} // address and host end
	for _, h := range held {
		has[h.Spec.Address+" "+hostOf(h.Spec.Owner)] = true
	}
	var errs []error
	for host, a := range known.pods {
		if !a.Bridged || !p.alive(a.Attachment, hosts) {
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

// restoreAllocation makes the allocation of the pod's address i again, unless the pod was
// deleted since it was looked at.
func (p *pods) restoreAllocation(ctx context.Context, a ovsdb.PodPort, i int) error {
	if !p.busy.try(a.HostIf) {
		return nil
	}
	defer p.busy.done(a.HostIf)
	known, err := p.records()
	if err != nil {
		return err
	}
	if now, there := known.pods[a.HostIf]; !there || i >= len(now.Pools) || !now.Equal(a.Attachment) {
		return nil
	}
	addr, o := a.Addrs[i].Addr(), p.owner(a.Attachment)
	if err := p.bridged.Restore(ctx, o, a.Pools[i], addr, p.keepOf(ctx, a.Attachment)); err != nil {
		p.warnOf(o, reasonTwice, fmt.Sprintf("%v. Delete one of the two pods", err))
		return fmt.Errorf("the allocation of pod %s was lost and can't be made again: %w", a.Pod(), err)
	}
	p.log.Info("an allocation was lost and is made again", "pod", a.Pod(), "address", addr, "pool", a.Pools[i])
	p.metrics.reclaimed.WithLabelValues("lost allocation").Inc()
	return nil
}

// checkHeld returns an error if the API server says that a pod's address is not its
// own. That it does not answer is none.
func (p *pods) checkHeld(ctx context.Context, a api.Attachment) error {
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	for _, addr := range a.Addrs {
		name := allocation.Name("", addr.Addr())
		h, err := p.bridged.store.Get(ctx, name)
		switch {
		case errors.Is(err, allocation.ErrNotFound):
			return fmt.Errorf("the IPAllocation %s is gone: it is made again within %s", name, allocationsEvery)
		case err == nil && (h.Spec.Phase != api.PhaseAllocated || hostOf(h.Spec.Owner) != a.HostIf):
			return fmt.Errorf("address %s belongs to %s (%s)", addr.Addr(), h.Spec.Owner, h.Spec.Phase)
		}
	}
	return nil
}

// gcAllocations gives back what containers hold that are on no record and that the
// runtime does not know. Without the API server that is left to reconcile.
func (p *pods) gcAllocations(ctx context.Context, network string, keep map[key]bool) error {
	if !p.loop.cfg.EnableBridgingMode || p.loop.source.Snapshot().Trouble != nil {
		return nil
	}
	held, err := p.held(ctx)
	if err != nil {
		return cniserver.TryAgain(fmt.Sprintf("looking for addresses of pods that are gone: %v", err))
	}
	var errs []error
	for _, h := range held {
		if o := h.Spec.Owner; !o.IPAMOnly && o.Network == network && !keep[key{o.ContainerID, o.IfName}] {
			errs = append(errs, p.gcAllocation(ctx, h))
		}
	}
	return errors.Join(errs...)
}

func (p *pods) gcAllocation(ctx context.Context, h api.IPAllocation) error {
	o := h.Spec.Owner
	host := hostOf(o)
	if !p.busy.try(host) {
		return nil
	}
	defer p.busy.done(host)
	known, err := p.records()
	if err != nil || known.has(host) {
		return err
	}
	if err := p.remove(ctx, key{o.ContainerID, o.IfName}, o.Network); err != nil {
		return err
	}
	p.log.Info("garbage collected the address of a pod that the runtime does not know", "address", h.Spec.Address,
		"owner", o.String())
	p.metrics.reclaimed.WithLabelValues("gc").Inc()
	return nil
}
