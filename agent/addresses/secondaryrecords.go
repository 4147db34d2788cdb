package addresses

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/fairlead-cni/fairlead/agent/attachments"
	"github.com/fairlead-cni/fairlead/agent/events"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/internal/atomicfile"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/ipam/allocator"
)

// secondaryDir records the addresses that containers of this node got for interfaces that another plugin creates, one
// file each: nothing else on the node records them, and their allocations may be lost.
const secondaryDir = "/var/lib/fairlead/secondary-addresses"

// secondaryRecord is the content of one file. Unknown fields come from a newer agent, and are ignored.
type secondaryRecord struct {
	Owner api.AllocationOwner `json:"owner"`
	// Pools are the IPPools of the addresses, by the names of their allocations.
	Pools map[string]string `json:"pools"`
}

// secondaryRecords are the files in secondaryDir. A file exists from before the ADD is answered until the address is
// released, or its container is gone.
type secondaryRecords struct {
	dir string

	mu sync.Mutex
	of map[string]secondaryRecord // by file name, from attachments.HostOf
}

func (l *secondaryRecords) path(host string) string { return filepath.Join(l.dir, host+".json") }

// load reads all files. Invalid ones, such as a full disk leaves behind, are named in the error and left out.
func (l *secondaryRecords) load() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of = map[string]secondaryRecord{}
	entries, err := os.ReadDir(l.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		host, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok {
			continue
		}
		var f secondaryRecord
		data, err := os.ReadFile(l.path(host))
		if err == nil {
			err = json.Unmarshal(data, &f)
		}
		if err == nil && attachments.HostOf(f.Owner) != host {
			err = errors.New("the agent did not write it")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s is not a valid record of a container's addresses: %w. Remove it", l.path(host), err))
			continue
		}
		l.of[host] = f
	}
	return errors.Join(errs...)
}

// keep records what an owner was given.
func (l *secondaryRecords) keep(o api.AllocationOwner, given []allocator.Address) error {
	f := secondaryRecord{o, map[string]string{}}
	for _, g := range given {
		f.Pools[allocation.Name(g.Scope, g.Prefix.Addr())] = g.Pool
	}
	host := attachments.HostOf(o)
	l.mu.Lock()
	defer l.mu.Unlock()
	if before, there := l.of[host]; there && before.Owner == o && maps.Equal(before.Pools, f.Pools) {
		return nil
	}
	data, err := json.Marshal(f)
	if err == nil {
		err = atomicfile.Write(l.path(host), data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("recording the addresses of container %s: %w", o.ContainerID, err)
	}
	l.of[host] = f
	return nil
}

// forget removes the file of an owner that no longer has an address. If that fails, the file is removed when its
// container is gone.
func (l *secondaryRecords) forget(host string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.of, host)
	if err := os.Remove(l.path(host)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// all are the files by their names.
func (l *secondaryRecords) all() map[string]secondaryRecord {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.of)
}

// with returns the file of the owner that has the address of that allocation.
func (l *secondaryRecords) with(name string) (f secondaryRecord, found bool) {
	for _, f := range l.all() {
		if _, has := f.Pools[name]; has {
			return f, true
		}
	}
	return secondaryRecord{}, false
}

// containerMayExist reports whether the owner's container may still be there.
func (p *Addresses) containerMayExist(o api.AllocationOwner) bool {
	return o.BootID == p.Registry.BootID && !netnsGone(o.Netns)
}

// inUse implements allocator.InUse: an address whose allocation is gone, but whose container still exists, is not
// allocated to another.
func (p *Addresses) inUse(ctx context.Context, name string) (*api.IPAllocation, error) {
	f, found := p.secondaries.with(name)
	if !found || !p.containerMayExist(f.Owner) {
		return nil, nil
	}
	_, addr, err := allocation.ParseName(name)
	if err != nil {
		return nil, err
	}
	holder := &api.IPAllocation{Spec: api.IPAllocationSpec{Address: addr.String(), Pool: f.Pools[name],
		Phase: api.PhaseAllocated, Owner: f.Owner}}
	holder.Name = name
	return holder, p.restoreSecondary(ctx, f, name)
}

// restoreSecondary recreates a lost allocation of an interface that another plugin created, unless a request for it is
// in progress.
func (p *Addresses) restoreSecondary(ctx context.Context, f secondaryRecord, name string) error {
	host := attachments.HostOf(f.Owner)
	if !p.Registry.Locks.TryLock(host) {
		return nil
	}
	defer p.Registry.Locks.Unlock(host)
	if _, still := p.secondaries.all()[host]; !still {
		return nil
	}
	scope, addr, err := allocation.ParseName(name)
	if err != nil {
		return err
	}
	o, pool := f.Owner, f.Pools[name]
	lost, err := p.allocator.Restore(ctx, o, pool, scope, addr, nil)
	if err != nil {
		p.Events.WarnOwner(o, events.ReasonDuplicate, fmt.Sprintf("%v. Delete one of the two pods", err))
		return fmt.Errorf("the allocation of address %s, which %s has, was lost and cannot be restored: %w", addr, o, err)
	}
	if !lost { // another container's ADD checks addresses in use, too
		return nil
	}
	p.Log.Info("recreated a lost allocation", "owner", o.String(), "network", o.Network, "address", addr, "pool", pool)
	p.Metrics.Pods.Reclaimed.WithLabelValues("lost_allocation").Inc()
	return nil
}

// restoreSecondaries recreates the allocations of living containers that are missing from held, and removes the files
// of containers that are gone.
func (p *Addresses) restoreSecondaries(ctx context.Context, held []api.IPAllocation) error {
	has := map[string]bool{} // name and file
	for _, h := range held {
		has[h.Name+" "+attachments.HostOf(h.Spec.Owner)] = true
	}
	var errs []error
	for host, f := range p.secondaries.all() {
		if !p.containerMayExist(f.Owner) {
			if err := p.secondaries.forget(host); err != nil {
				errs = append(errs, fmt.Errorf("removing the record of a deleted container's addresses: %w", err))
			}
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(f.Pools)) {
			if !has[name+" "+host] {
				errs = append(errs, p.restoreSecondary(ctx, f, name))
			}
		}
	}
	return errors.Join(errs...)
}
