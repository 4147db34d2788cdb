package addresses

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/agent/attachments"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/cniserver"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/ipam/allocator"
	"github.com/fairlead-cni/fairlead/ipam/selection"
)

// secondary implements cniserver.IPAM: addresses of pools for interfaces that another plugin creates. Only its
// allocations, whose owners are IPAMOnly, record the addresses of such an interface. Nothing here needs Open vSwitch,
// the uplink or bridging mode.
type secondary struct{ addresses *Addresses }

// Secondary serves addresses for interfaces that another plugin creates.
func (p *Addresses) Secondary() cniserver.IPAM { return secondary{p} }

// unprobed is the key of a context in which addresses are not probed on the underlay: the node has no interface in the
// other plugin's network.
type unprobed struct{}

func (s secondary) owner(r cniserver.Request) api.AllocationOwner {
	return api.AllocationOwner{PodUID: r.PodUID, Namespace: r.PodNamespace, Name: r.PodName, ContainerID: r.ContainerID,
		IfName: r.IfName, Network: r.Network, IPAMOnly: true, Node: s.addresses.NodeName, Netns: r.Netns,
		BootID: s.addresses.Registry.BootID}
}

// Add implements cniserver.IPAM.
func (s secondary) Add(ctx context.Context, r cniserver.AddressRequest) ([]cniserver.Address, error) {
	if len(r.Pools) == 0 {
		return nil, nil
	}
	p, o := s.addresses, s.owner(r.Request)
	host := attachments.HostOf(o)
	if !p.Registry.Locks.TryLock(host) {
		return nil, ErrBusy()
	}
	defer p.Registry.Locks.Unlock(host)
	known, err := p.knownPools(ctx, r.Pools)
	if err != nil {
		return nil, err
	}
	pools, err := selection.Secondary(r.Pools, r.Wanted, known)
	if err != nil {
		return nil, p.rejectError(r.Request, err)
	}
	if err := p.releaseDeferred(ctx, o); err != nil {
		return nil, cniserver.TryAgainLater(err)
	}
	if err := p.allocationBlocked(); err != nil {
		return nil, s.allocationError(r, err)
	}
	want := allocator.Request{Pools: pools, Owner: o}
	for _, w := range r.Wanted {
		want.PodIPs = append(want.PodIPs, w.Addr())
	}
	given, err := p.allocator.Allocate(context.WithValue(ctx, unprobed{}, true), want)
	if err != nil {
		return nil, s.allocationError(r, err)
	}
	if err := p.secondaries.keep(o, given); err != nil { // without it, the address might later be allocated again
		return nil, cniserver.TryAgainLater(errors.Join(err, p.Release(ctx, o)))
	}
	p.Metrics.Pools.Allocated.Add(float64(len(given)))
	var out []cniserver.Address
	for _, g := range given {
		out = append(out, cniserver.Address{Prefix: g.Prefix, Gateway: g.Gateway})
	}
	return out, nil
}

// allocationError is the answer for an error of the allocator. All are worth a retry: a pool may be extended, an
// address released.
func (s secondary) allocationError(r cniserver.AddressRequest, err error) error {
	who := fmt.Sprintf("interface %s of pod %s/%s", r.IfName, r.PodNamespace, r.PodName)
	if r.PodName == "" {
		who = fmt.Sprintf("interface %s of container %s", r.IfName, r.ContainerID)
	}
	var ip *allocator.PodIPError
	if errors.As(err, &ip) {
		return s.addresses.retryError(r.Request, fmt.Errorf("%s waits for the address %s of network %s, which %s", who, ip.Address,
			r.Network, ip.Reason))
	}
	return s.addresses.retryError(r.Request, fmt.Errorf("%s gets no address in network %s: %w", who, r.Network, err))
}

// Del implements cniserver.IPAM. It does not depend on the current configuration.
func (s secondary) Del(ctx context.Context, r cniserver.Request) error {
	o := s.owner(r)
	host := attachments.HostOf(o)
	if !s.addresses.Registry.Locks.TryLock(host) {
		return ErrBusy()
	}
	defer s.addresses.Registry.Locks.Unlock(host)
	if err := s.addresses.Release(ctx, o); err != nil {
		return err
	}
	s.forget(host)
	return nil
}

// forget removes the file of an owner whose address was released, or is about to be.
func (s secondary) forget(host string) {
	if err := s.addresses.secondaries.forget(host); err != nil {
		s.addresses.Log.Error(err, "removing the file of a released address; it will be removed once the container is gone")
	}
}

// Check implements cniserver.IPAM. It returns no error if the API server does not answer.
func (s secondary) Check(ctx context.Context, r cniserver.AddressRequest) error {
	o := s.owner(r.Request)
	list, err := s.held(ctx, func(h api.AllocationOwner) bool { return attachments.HostOf(h) == attachments.HostOf(o) })
	if err != nil {
		s.addresses.Log.V(1).Info("CHECK skipped the allocations: they cannot be read", "owner", o.String(), "reason", err.Error())
		return nil
	}
	var has []netip.Addr
	for _, h := range list {
		addr, err := netip.ParseAddr(h.Spec.Address)
		if err != nil {
			return err
		}
		has = append(has, addr)
		if !slices.ContainsFunc(r.PrevAddrs, func(p netip.Prefix) bool { return p.Addr() == addr }) {
			return fmt.Errorf("the container holds %s of IPPool %s for interface %s in network %s, and prevResult has %v: "+
				"recreate the pod", addr, h.Spec.Pool, r.IfName, r.Network, r.PrevAddrs)
		}
		if h.Spec.Owner.BootID != o.BootID || h.Spec.Owner.Netns != o.Netns {
			return fmt.Errorf("the IPAllocation %s is for network namespace %s, and the container is in %s: recreate the pod",
				h.Name, h.Spec.Owner.Netns, o.Netns)
		}
	}
	for _, p := range r.PrevAddrs {
		if !slices.Contains(has, p.Addr()) {
			return fmt.Errorf("prevResult has the address %s, which interface %s does not hold in network %s: its IPAllocation "+
				"is gone, and another pod may get the address. Recreate the pod", p.Addr(), r.IfName, r.Network)
		}
	}
	return nil
}

// held are the allocations of other plugins' interfaces on this node whose owners match such.
func (s secondary) held(ctx context.Context, such func(api.AllocationOwner) bool) ([]api.IPAllocation, error) {
	list, err := s.addresses.Held(ctx)
	if errors.Is(err, allocation.ErrNoKind) {
		return nil, nil
	}
	return slices.DeleteFunc(list, func(h api.IPAllocation) bool {
		return !h.Spec.Owner.IPAMOnly || !such(h.Spec.Owner)
	}), err
}

// GC implements cniserver.IPAM.
func (s secondary) GC(ctx context.Context, network string, valid []cniserver.AttachmentID) error {
	list, err := s.held(ctx, func(o api.AllocationOwner) bool {
		id := cniserver.AttachmentID{ContainerID: o.ContainerID, IfName: o.IfName}
		return o.Network == network && !slices.Contains(valid, id)
	})
	if err != nil {
		return cniserver.TryAgainLater(fmt.Errorf("looking for addresses unknown to the runtime: %w", err))
	}
	var errs []error
	for _, h := range list {
		errs = append(errs, s.collect(ctx, h))
	}
	return errors.Join(errs...)
}

func (s secondary) collect(ctx context.Context, h api.IPAllocation) error {
	p, o := s.addresses, h.Spec.Owner
	host := attachments.HostOf(o)
	if !p.Registry.Locks.TryLock(host) {
		return nil
	}
	defer p.Registry.Locks.Unlock(host)
	if err := p.allocator.Release(ctx, o); err != nil {
		return fmt.Errorf("releasing the address of an interface unknown to the runtime: %w", err)
	}
	s.forget(host)
	p.Log.Info("garbage collected the address of another plugin's interface unknown to the runtime",
		"address", h.Spec.Address, "owner", o.String(), "network", o.Network)
	p.Metrics.Pods.Reclaimed.WithLabelValues("gc").Inc()
	return nil
}

// Status implements cniserver.IPAM. It does not check whether a pool is full: that would cost the API server a list
// each time.
func (s secondary) Status(ctx context.Context, pools []string) error {
	if len(pools) == 0 {
		return nil
	}
	if trouble := s.addresses.Source.Snapshot().Trouble; trouble != nil {
		return errors.New("no addresses can be allocated from IPPools now: " + trouble.Error())
	}
	known, err := s.addresses.knownPools(ctx, pools)
	if err == nil {
		_, err = selection.Secondary(pools, nil, known)
	}
	if err != nil {
		return errors.New(err.Error()) // whatever the reason, the code is STATUS's own
	}
	return nil
}
