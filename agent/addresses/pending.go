package addresses

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/agent/attachments"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/cniserver"
	"github.com/fairlead-cni/fairlead/internal/atomicfile"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
)

// pendingDir has the deferred releases: one file for each container that was deleted while the API server was
// unreachable.
const pendingDir = "/var/lib/fairlead/pending-releases"

// olderPendingDir is where the first agents kept them, in the same format.
const olderPendingDir = "/var/lib/fairlead/owed"

// releaseTimeout is how long a DEL waits for the API server.
const releaseTimeout = 3 * time.Second

// pendingReleases are files, named like the container's host end, that name the owners of addresses to be released. A
// file exists from before the DEL is answered until they are released.
type pendingReleases struct{ dir string }

func (o pendingReleases) path(host string) string { return filepath.Join(o.dir, host+".json") }

// takeOver moves the files that an older agent has left in its directory: that agent can no longer release these
// addresses.
func (o pendingReleases) takeOver(older string) error {
	left, err := pendingReleases{older}.hosts()
	if err != nil || len(left) == 0 {
		return err
	}
	if err := os.MkdirAll(o.dir, 0o755); err != nil {
		return err
	}
	var errs []error
	for _, host := range left {
		errs = append(errs, os.Rename(pendingReleases{older}.path(host), o.path(host)))
	}
	return errors.Join(errs...)
}

// keep writes the file atomically.
func (o pendingReleases) keep(owner api.AllocationOwner) error {
	data, err := json.Marshal(owner)
	if err != nil {
		return err
	}
	return atomicfile.Write(o.path(attachments.HostOf(owner)), data, 0o600)
}

// done removes the file, if there is one.
func (o pendingReleases) done(host string) error {
	if err := os.Remove(o.path(host)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// unreadableError says that a file was not written by the agent.
type unreadableError struct{ path string }

func (e unreadableError) Error() string {
	return e.path + " was not written by the agent: remove it. The address is released when the container's network " +
		"namespace is gone"
}

// of returns the owner that is recorded for a host end. An invalid file is an unreadableError.
func (o pendingReleases) of(host string) (owner api.AllocationOwner, found bool, err error) {
	data, err := os.ReadFile(o.path(host))
	if errors.Is(err, fs.ErrNotExist) {
		return owner, false, nil
	}
	if err != nil {
		return owner, false, err
	}
	if err := json.Unmarshal(data, &owner); err != nil || attachments.HostOf(owner) != host {
		return owner, false, unreadableError{o.path(host)}
	}
	return owner, true, nil
}

// hosts are the host ends that have a file.
func (o pendingReleases) hosts() ([]string, error) {
	entries, err := os.ReadDir(o.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if host, ok := strings.CutSuffix(e.Name(), ".json"); ok {
			out = append(out, host)
		}
	}
	return out, nil
}

// Release releases the pool addresses that an owner (by ContainerID, IfName, Network and IPAMOnly) holds. If that is
// impossible now, it is recorded and done later: the interface is gone in any case.
func (p *Addresses) Release(ctx context.Context, o api.AllocationOwner) error {
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	err := p.allocator.Release(ctx, o)
	if err == nil || errors.Is(err, allocation.ErrNoKind) { // without pools, no addresses are held
		return p.pending.done(attachments.HostOf(o))
	}
	if werr := p.pending.keep(o); werr != nil {
		return cniserver.TryAgainLater(fmt.Errorf("releasing the address of container %s: %w; and recording it for later: %w",
			o.ContainerID, err, werr))
	}
	p.Metrics.Pools.PendingReleases.Inc()
	p.Log.Info("deferred release of a deleted pod's address",
		"containerID", o.ContainerID, "directory", p.pending.dir, "reason", err.Error())
	return nil
}

// ReleasePending reports whether the container that has this host end was deleted, and its addresses are still to be
// released.
func (p *Addresses) ReleasePending(host string) (bool, error) {
	_, found, err := p.pending.of(host)
	if errors.As(err, new(unreadableError)) {
		return false, nil
	}
	return found, err
}

// releaseDeferred makes the deferred release of an owner.
func (p *Addresses) releaseDeferred(ctx context.Context, o api.AllocationOwner) error {
	before, found, err := p.pending.of(attachments.HostOf(o))
	if err != nil || !found {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	if err := p.allocator.Release(ctx, before); err != nil && !errors.Is(err, allocation.ErrNoKind) {
		return fmt.Errorf("an earlier address of the container is not released yet: %w", err)
	}
	return p.pending.done(attachments.HostOf(o))
}

// releaseAllDeferred makes all deferred releases, or stops when the store is unreachable. An unreadable file does not
// hold up the others.
func (p *Addresses) releaseAllDeferred(ctx context.Context) error {
	hosts, err := p.pending.hosts()
	if err != nil {
		return fmt.Errorf("looking for deferred releases: %w", err)
	}
	var errs []error
	for i, host := range hosts {
		p.Metrics.Pools.PendingReleases.Set(float64(len(hosts) - i + len(errs)))
		err := p.releaseOneDeferred(ctx, host)
		if err != nil && !errors.As(err, new(unreadableError)) {
			return errors.Join(append(errs, err)...)
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	p.Metrics.Pools.PendingReleases.Set(float64(len(errs)))
	return errors.Join(errs...)
}

func (p *Addresses) releaseOneDeferred(ctx context.Context, host string) error {
	if !p.Registry.Locks.TryLock(host) {
		return nil
	}
	defer p.Registry.Locks.Unlock(host)
	o, found, err := p.pending.of(host)
	if err != nil || !found {
		return err
	}
	if err := p.releaseDeferred(ctx, o); err != nil {
		return err
	}
	p.Log.Info("released the address of a deleted pod (deferred)", "containerID", o.ContainerID)
	return nil
}
