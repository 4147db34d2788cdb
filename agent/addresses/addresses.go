// Package addresses allocates addresses of IPPools to pods and releases them: it evaluates what a pod asks for, probes
// the underlay, defers releases that cannot be made yet, and compares allocations with the node to find those whose
// pods are gone (package reclaim has the rules). Allocations (package allocation) record who holds which address; their
// owner names node, container and boot. Two kinds of records are on disk here, one file each: pending releases, and the
// addresses of interfaces that other plugins created.
package addresses

import (
	"context"
	"errors"
	"sync"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/agent/attachments"
	"github.com/fairlead-cni/fairlead/agent/events"
	"github.com/fairlead-cni/fairlead/agent/signal"
	"github.com/fairlead-cni/fairlead/agent/status"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/cniserver"
	"github.com/fairlead-cni/fairlead/datapath/wire"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/ipam/allocator"
	"github.com/fairlead-cni/fairlead/ipam/pool"
	"github.com/fairlead-cni/fairlead/kube"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

// Parts are the dependencies of Addresses.
type Parts struct {
	Config   api.AgentConfig
	NodeName string
	// Client is nil where inputs come from a directory: then the allocations are files, too.
	Client    *kube.Client
	Source    inputs.Source
	Board     *status.Board
	Intervals api.AgentIntervals
	Registry  *attachments.Registry
	Events    *events.Pods
	Metrics   *status.Metrics
	Log       logr.Logger
}

// Addresses allocates and releases this node's addresses of IPPools.
type Addresses struct {
	Parts
	store       allocation.Store
	allocator   *allocator.Allocator
	pending     pendingReleases
	secondaries secondaryRecords
	prober      *prober
	reconciler  reconciler
	// announcing are goroutines that end by themselves within seconds, or when stop is called.
	announcing sync.WaitGroup
	running    context.Context
	stop       context.CancelFunc
}

// New opens the store of allocations.
func New(parts Parts) (*Addresses, error) {
	p := &Addresses{Parts: parts, pending: pendingReleases{dir: pendingDir},
		secondaries: secondaryRecords{dir: secondaryDir}}
	p.running, p.stop = context.WithCancel(context.Background())
	p.prober = &prober{board: p.Board, source: p.Source, timeout: p.Config.IPAM.ConflictProbeTimeout, more: signal.New(),
		every: p.Intervals.Probe, maxAge: p.Intervals.ProbeAge}
	if p.Client != nil {
		p.store = allocation.NewKubernetes(p.Client.Dynamic)
	} else {
		d, err := allocation.NewDirectory(p.Config.IPAM.AllocationsDir)
		if err != nil {
			return nil, err
		}
		p.store = d
	}
	p.allocator = allocator.New(allocator.Config{Store: p.store, Node: p.NodeName, Cooling: p.Config.IPAM.CoolingPeriod,
		Probe: p.probe, MAC: bridgedMAC, InUse: p.inUse, FreeMap: p.freeMap, Log: p.Log.WithName("ipam")})
	if err := p.pending.takeOver(olderPendingDir); err != nil {
		p.Log.Error(err, "taking over an older agent's deferred releases", "directory", olderPendingDir)
	}
	if err := p.secondaries.load(); err != nil {
		p.Log.Error(err, "reading the addresses that containers have on other plugins' interfaces", "directory", p.secondaries.dir)
	}
	p.newReconciler()
	return p, nil
}

// freeMap is the controller's current free map of a pool.
func (p *Addresses) freeMap(name string) (pool.FreeMap, bool) {
	read, err := pool.Read(p.Source.Snapshot().IPPools[name])
	return read.Free, err == nil
}

// Close ends announcements that are still in progress.
func (p *Addresses) Close() {
	p.stop()
	p.announcing.Wait()
}

// ErrBusy is the answer to a request for a container for which another request is in progress.
func ErrBusy() error {
	return cniserver.TryAgainLater(errors.New("another request, or the clean-up after one, is in progress for this container"))
}

// Held are this node's allocations, as the store has them now. It waits for the API server no longer than a DEL does.
func (p *Addresses) Held(ctx context.Context) ([]api.IPAllocation, error) {
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	return p.allocator.Held(ctx)
}

// Owner is the owner of a's addresses.
func (p *Addresses) Owner(a api.Attachment) api.AllocationOwner {
	return api.AllocationOwner{PodUID: a.PodUID, Namespace: a.PodNamespace, Name: a.PodName, ContainerID: a.ContainerID,
		IfName: a.IfName, Network: a.Network, Node: p.NodeName, Netns: a.Netns, BootID: a.BootID}
}

// Announce announces a bridged pod's location to the underlay. It takes seconds, but no ADD waits for it: the first
// frame is sent at once.
func (p *Addresses) Announce(a api.Attachment) {
	if !a.Bridged || p.running.Err() != nil {
		return
	}
	p.announcing.Go(func() {
		if err := wire.Announce(p.running, a.Netns, a.IfName, a.MAC, addrsOf(a)); err != nil {
			p.Log.V(1).Info("stopped announcing a pod's addresses early: the pod may be gone", "pod", a.Pod(), "err", err.Error())
		}
	})
}
