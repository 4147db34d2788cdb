package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/cniserver"
	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
)

const (
	// allocationsEvery is how often allocations are compared with the node when
	// nothing seems wrong: it costs the API server a list.
	allocationsEvery = 5 * time.Minute
	// graceOfSuspects is how long an allocation must look dead before it is freed.
	graceOfSuspects = 10 * time.Second
)

// suspects are this node's allocations that seemed to have no living owner when they
// were last looked at. Only reconcile uses it, but for lookNow.
type suspects struct {
	since  map[string]suspect // by the allocation's name
	looked time.Time
	now    atomic.Bool
	wake   chan struct{} // gets a value when it is to be looked now
}

// suspect is when an allocation first seemed dead, and which one it was.
type suspect struct {
	uid, version string
	since        time.Time
}

// held are this node's allocations, as the store has them now. It waits for an API
// server no longer than a DEL does.
func (p *pods) held(ctx context.Context) ([]api.IPAllocation, error) {
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	return p.bridged.Held(ctx)
}

// lookNow has allocations compared with the node.
func (s *suspects) lookNow() {
	s.now.Store(true)
	poke(s.wake)
}

func (s *suspects) due() bool {
	return s.now.Swap(false) || len(s.since) > 0 || time.Since(s.looked) > allocationsEvery
}

// reconcileAllocations compares this node's allocations with what is on it. The node
// is the first witness of its pods. An allocation is dead if no interface and no
// record of its owner is here, and if it is of another boot or the owner's network
// namespace is gone. It is freed after a second look. An allocation that a living
// pod has lost is made again.
func (p *pods) reconcileAllocations(ctx context.Context) error {
	if !p.loop.cfg.EnableBridgingMode || p.loop.source.Snapshot().Trouble != nil {
		return nil // without the API server nothing can be told, and the trouble is told elsewhere
	}
	errs := []error{p.settleAll(ctx)}
	s := &p.bridged.suspects
	if !s.due() {
		return errors.Join(errs...)
	}
	// Allocations first: one whose owner is not on record a moment later had its
	// whole ADD or DEL to be so.
	held, err := p.held(ctx)
	if err != nil {
		s.now.Store(true)
		return errors.Join(append(errs, fmt.Errorf("comparing allocations with the node: %w", err))...)
	}
	s.looked = time.Now()
	return errors.Join(append(errs, p.restoreAllocations(ctx, held), p.reclaimAllocations(ctx, held))...)
}

func (p *pods) reclaimAllocations(ctx context.Context, held []api.IPAllocation) error {
	before, now := p.bridged.suspects.since, map[string]suspect{}
	var errs []error
	for _, h := range held {
		dead, err := p.dead(h.Spec.Owner)
		if err != nil {
			return err
		}
		if !dead {
			continue
		}
		seen := suspect{string(h.UID), h.ResourceVersion, time.Now()}
		if b, again := before[h.Name]; again && b.uid == seen.uid && b.version == seen.version {
			seen.since = b.since
		}
		now[h.Name] = seen
		if time.Since(seen.since) >= graceOfSuspects {
			errs = append(errs, p.reclaimAllocation(ctx, h))
		}
	}
	p.bridged.suspects.since = now
	return errors.Join(errs...)
}

// dead tells whether nobody on this node can use what o holds.
func (p *pods) dead(o api.AllocationOwner) (bool, error) {
	hosts, err := link.Hosts()
	if err != nil {
		return false, fmt.Errorf("listing pods' interfaces: %w", err)
	}
	known, err := p.records()
	if err != nil {
		return false, err
	}
	if host := hostOf(o); slices.Contains(hosts, host) || known.has(host) {
		return false, nil
	}
	if o.BootID != "" && o.BootID != p.bootID {
		return true, nil
	}
	if o.Netns == "" {
		return false, nil
	}
	_, err = os.Stat(o.Netns)
	return errors.Is(err, fs.ErrNotExist), nil
}

// reclaimAllocation looks again, now that no request works on the container.
func (p *pods) reclaimAllocation(ctx context.Context, h api.IPAllocation) error {
	o := h.Spec.Owner
	host := hostOf(o)
	if !p.busy.try(host) {
		return nil
	}
	defer p.busy.done(host)
	if dead, err := p.dead(o); err != nil || !dead {
		return err
	}
	if err := p.bridged.Release(ctx, o); err != nil {
		return fmt.Errorf("taking back the address of a pod that is gone: %w", err)
	}
	p.log.Info("took back the address of a pod that is gone", "address", h.Spec.Address, "pool", h.Spec.Pool, "owner", o.String())
	p.metrics.reclaimed.WithLabelValues("allocation").Inc()
	p.warnOf(o, reasonReclaimed, fmt.Sprintf("address %s of IPPool %s was still held by container %s, which is gone from node "+
		"%s: it is given back", h.Spec.Address, h.Spec.Pool, o.ContainerID, o.Node))
	return nil
}

// restoreAllocations makes again what living pods have lost: somebody deleted the
// object, or the cluster's database was emptied or restored.
func (p *pods) restoreAllocations(ctx context.Context, held []api.IPAllocation) error {
	known, err := p.records()
	if err != nil {
		return err
	}
	hosts, err := link.Hosts()
	if err != nil {
		return fmt.Errorf("listing pods' interfaces: %w", err)
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
	if err := p.bridged.Restore(ctx, o, a.Pools[i], addr); err != nil {
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
		if o := h.Spec.Owner; o.Network == network && !keep[key{o.ContainerID, o.IfName}] {
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
