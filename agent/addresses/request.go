package addresses

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/fairlead-cni/fairlead/agent/events"
	"github.com/fairlead-cni/fairlead/agent/status"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/cniserver"
	"github.com/fairlead-cni/fairlead/ipam/allocator"
	"github.com/fairlead-cni/fairlead/ipam/pool"
	"github.com/fairlead-cni/fairlead/ipam/selection"
)

// PoolRequest is what a bridged pod asks for.
type PoolRequest struct {
	selection.PoolRequest
	// keep is the addresses' reservation; nil for none.
	keep *api.AllocationReservation
}

// Request returns what a pod's annotations ask for; nil means a routed pod. A pod whose annotations are not known
// waits: giving it an address of the podCIDR instead would be silently wrong.
func (p *Addresses) Request(ctx context.Context, r cniserver.Request) (*PoolRequest, error) {
	if r.PodName == "" { // not of Kubernetes
		return nil, nil
	}
	pod, ns, err := p.Source.Pod(ctx, r.PodNamespace, r.PodName, r.PodUID)
	if err != nil {
		return nil, cniserver.TryAgainLater(err)
	}
	of := member(r, pod)
	in := selection.Object{Name: "Namespace " + r.PodNamespace, Annotations: ns.Annotations}
	if !selection.RequestsPool(of.Object, in) {
		if _, asks := pod.Annotations[api.AnnotationSticky]; asks {
			return nil, p.rejectError(r, fmt.Errorf("%s has the annotation %s, and only addresses of IPPools can be kept: add %s, or "+
				"remove it", of.Name, api.AnnotationSticky, api.AnnotationPools))
		}
		return nil, nil
	}
	if !p.Config.EnableBridgingMode {
		return nil, p.rejectError(r, fmt.Errorf("%s asks for an address of an IPPool (annotations %s and %s, its own or its "+
			"Namespace's), and node %s bridges no pods: set enableBridgingMode: true in its agent's config, or remove the "+
			"annotations", of.Name, api.AnnotationPools, api.AnnotationPodIPs, p.NodeName))
	}
	keep, err := p.reservation(ctx, of)
	if err != nil {
		return nil, p.requestError(r, err)
	}
	w, err := p.requestedPools(ctx, of, in)
	if err != nil {
		return nil, p.requestError(r, err)
	}
	return &PoolRequest{w, keep}, nil
}

// rejectError is the answer if something must be changed first. The Pod gets an Event.
func (p *Addresses) rejectError(r cniserver.Request, err error) error {
	p.Events.Warn(r, events.ReasonNoAddress, err.Error())
	return cniserver.NoAddress(err)
}

// retryError is the answer if a retry may succeed.
func (p *Addresses) retryError(r cniserver.Request, err error) error {
	p.Events.Warn(r, events.ReasonNoAddress, err.Error())
	return cniserver.TryAgainLater(err)
}

// Assign makes a the attachment of a bridged pod: it sets the addresses and what depends on them.
func (p *Addresses) Assign(ctx context.Context, a *api.Attachment, r cniserver.Request, w PoolRequest,
	s *status.Status) error {
	if s.NoUplink != nil {
		return p.retryError(r, s.NoUplink)
	}
	pools, err := p.choose(ctx, r, w.PoolRequest, s)
	if err != nil {
		return err
	}
	given, err := p.allocateFrom(ctx, r, allocator.Request{
		Pools: pools, PodIPs: w.PodIPs, Owner: p.Owner(*a), Keep: w.keep})
	if err != nil {
		return p.allocationError(r, err)
	}
	Fill(a, given)
	return nil
}

// Fill sets in a what was allocated, one address per family.
func Fill(a *api.Attachment, given []allocator.Address) {
	a.Bridged, a.VLAN = true, given[0].VLAN
	if a.MAC = given[0].MAC; a.MAC == (api.MAC{}) {
		a.MAC = bridgedMAC(given[0])
	}
	for _, g := range given {
		a.Addrs = append(a.Addrs, g.Prefix)
		a.Pools = append(a.Pools, g.Pool)
		a.Gateways = append(a.Gateways, g.Gateway)
	}
}

// bridgedMAC is derived from the pod's first address: the next pod with the address, on any node, has the same MAC, so
// no neighbour cache entry is wrong.
func bridgedMAC(first allocator.Address) api.MAC {
	return api.LocalMAC(fmt.Sprintf("bridged %s %d %s", first.Scope, first.VLAN, first.Prefix.Addr()))
}

// choose returns the pools that w names, if addresses can be allocated from them here.
func (p *Addresses) choose(ctx context.Context, r cniserver.Request, w selection.PoolRequest, s *status.Status) (
	[]pool.Pool, error) {
	known, err := p.knownPools(ctx, w.Pools)
	if err != nil {
		return nil, err
	}
	known.Devices = s.VLANDevices
	pools, err := w.Choose(known)
	if err != nil {
		return nil, p.rejectError(r, err)
	}
	return pools, nil
}

// knownPools are the cluster's pools as far as the agent watches them, and the named ones.
func (p *Addresses) knownPools(ctx context.Context, names []string) (selection.Known, error) {
	snapshot := p.Source.Snapshot()
	all := maps.Clone(snapshot.IPPools)
	if all == nil {
		all = map[string]api.IPPool{}
	}
	for _, name := range names {
		if _, known := all[name]; known {
			continue
		}
		object, found, err := p.Source.Pool(ctx, name)
		if err != nil {
			return selection.Known{}, cniserver.TryAgainLater(err)
		}
		if found {
			all[name] = object
		}
	}
	others := pool.Others{ServiceCIDRs: p.Config.ServiceCIDRs(), Nodes: make([]pool.Node, 0, len(snapshot.Nodes))}
	for name, n := range snapshot.Nodes {
		others.Nodes = append(others.Nodes, pool.Node{Name: name, PodCIDRs: n.PodCIDRs, Addresses: n.Addresses})
	}
	return selection.Known{IPPools: all, Others: others}, nil
}

// allocateFrom allocates addresses, and reports those that other hosts on the underlay have.
func (p *Addresses) allocateFrom(ctx context.Context, r cniserver.Request, want allocator.Request) (
	[]allocator.Address, error) {
	if err := p.allocationBlocked(); err != nil {
		return nil, err
	}
	// Addresses that this container had before it was deleted, maybe while the API server was unreachable, are released
	// first: a later release would free the new ones.
	if err := p.releaseDeferred(ctx, want.Owner); err != nil {
		return nil, err
	}
	found := &conflicts{}
	given, err := p.allocator.Allocate(found.in(ctx), want)
	for _, c := range found.all() {
		p.Metrics.Pools.Conflicts.Inc()
		p.Events.Warn(r, events.ReasonConflict, c.String())
	}
	if err == nil {
		p.Metrics.Pools.Allocated.Add(float64(len(given)))
		p.prober.use(want.Pools)
	}
	return given, err
}

// allocationError is the answer for an error of the allocator.
func (p *Addresses) allocationError(r cniserver.Request, err error) error {
	var coded *types.Error
	var full *allocator.ExhaustedError
	var ip *allocator.PodIPError
	var vlan *allocator.VLANError
	var sticky *allocator.StickyError
	var answers *allocator.StillInUseError
	switch {
	case errors.As(err, &sticky), errors.As(err, &answers):
		return p.retryError(r, fmt.Errorf("pod %s/%s waits for its address: %w", r.PodNamespace, r.PodName, err))
	case errors.As(err, &coded):
		return err
	case errors.As(err, &full):
		return p.retryError(r, fmt.Errorf("pod %s/%s gets no address: %w", r.PodNamespace, r.PodName, err))
	case errors.As(err, &ip) && ip.Holder != nil:
		return p.retryError(r, fmt.Errorf("pod %s/%s waits for its address: %w", r.PodNamespace, r.PodName, err))
	case errors.As(err, &ip), errors.As(err, &vlan):
		return p.rejectError(r, fmt.Errorf("pod %s/%s: %w", r.PodNamespace, r.PodName, err))
	}
	return p.retryError(r, fmt.Errorf("pod %s/%s gets no address from an IPPool now: %w", r.PodNamespace, r.PodName, err))
}

func addrsOf(a api.Attachment) (addrs []netip.Addr) {
	for _, prefix := range a.Addrs {
		addrs = append(addrs, prefix.Addr())
	}
	return addrs
}
