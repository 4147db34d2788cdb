package pods

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/agent/addresses"
	"github.com/fairlead-cni/fairlead/agent/attachments"
	"github.com/fairlead-cni/fairlead/agent/node"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/ipam/allocator"
	"github.com/fairlead-cni/fairlead/ipam/pool"
)

// rebuild restores records that OVSDB has lost while no agent ran, as when its database was deleted: a veth with a
// lease, or with an allocation, may be that of a running pod. It looks the same after an interrupted ADD or DEL, and is
// then removed by the runtime's DEL. What only the record had, a routed pod's name and the path of its network
// namespace, stays empty.
//
// Routed pods come first, whatever errors bridged ones have: their allocations may be unknown for long.
func (p *Pods) rebuild(ctx context.Context) error {
	routed, bare, err := p.unrecorded()
	if err != nil {
		return err
	}
	var errs []error
	for _, a := range routed {
		errs = append(errs, p.rebuildOne(ctx, a))
	}
	bridged, err := p.unrecordedBridged(ctx, bare)
	errs = append(errs, err)
	for _, a := range bridged {
		errs = append(errs, p.rebuildOne(ctx, a))
	}
	return errors.Join(errs...)
}

// unrecorded are the host ends without a record: in routed those with a lease, with their attachments, in bare the
// others.
func (p *Pods) unrecorded() (routed map[string]api.Attachment, bare []string, err error) {
	known, err := p.Registry.Records()
	if err != nil {
		return nil, nil, err
	}
	hosts, err := p.Registry.Hosts()
	if err != nil {
		return nil, nil, err
	}
	leases, err := p.leases.Leases()
	if err != nil {
		return nil, nil, fmt.Errorf("listing leases: %w", err)
	}
	hosts = slices.DeleteFunc(hosts, func(host string) bool { return known.Has(host) || p.unfinished.has(host) })
	routed = map[string]api.Attachment{}
	for _, l := range leases {
		host := link.HostName(l.ContainerID, l.IfName)
		if !slices.Contains(hosts, host) {
			continue
		}
		a, ok := routed[host]
		if !ok {
			a = p.attachment(l.ContainerID, l.IfName)
		}
		a.Addrs = append(a.Addrs, p.withMask(l.Addr))
		routed[host] = a
	}
	bare = slices.DeleteFunc(hosts, func(host string) bool {
		_, leased := routed[host]
		return leased
	})
	return routed, bare, nil
}

// unrecordedBridged are the attachments of the host ends whose containers hold addresses of pools. With an error there
// may be more.
func (p *Pods) unrecordedBridged(ctx context.Context, hosts []string) ([]api.Attachment, error) {
	held, err := p.heldBy(ctx, hosts)
	if err != nil {
		return nil, err
	}
	var found []api.Attachment
	var errs []error
	for _, allocations := range held {
		a, err := p.attachmentOf(allocations)
		if err != nil {
			errs = append(errs, fmt.Errorf("record of container %s: %w", allocations[0].Spec.Owner.ContainerID, err))
			continue
		}
		found = append(found, a)
	}
	return found, errors.Join(errs...)
}

// heldBy are this boot's allocations whose owners have one of the host ends, without those of deleted containers.
func (p *Pods) heldBy(ctx context.Context, hosts []string) (map[string][]api.IPAllocation, error) {
	if len(hosts) == 0 || !p.Config.EnableBridgingMode {
		return nil, nil
	}
	held, err := p.Addresses.Held(ctx)
	if err != nil {
		return nil, fmt.Errorf("interfaces %s have no record, and it is unknown whether bridged pods have them: %w",
			report.Some(hosts), err)
	}
	by := map[string][]api.IPAllocation{}
	for _, h := range held {
		o := h.Spec.Owner
		host := attachments.HostOf(o)
		if o.BootID != p.Registry.BootID || !slices.Contains(hosts, host) {
			continue
		}
		deleted, err := p.Addresses.ReleasePending(host)
		if err != nil {
			return nil, err
		}
		if !deleted {
			by[host] = append(by[host], h)
		}
	}
	return by, nil
}

// attachmentOf is the attachment whose owner holds these allocations.
func (p *Pods) attachmentOf(held []api.IPAllocation) (api.Attachment, error) {
	o := held[0].Spec.Owner
	a := p.attachment(o.ContainerID, o.IfName)
	a.Netns, a.Network, a.PodNamespace, a.PodName, a.PodUID = o.Netns, o.Network, o.Namespace, o.Name, o.PodUID
	pools, mac := p.Source.Snapshot().IPPools, reservedMAC(held)
	var given []allocator.Address
	for _, h := range held {
		q, err := pool.Read(pools[h.Spec.Pool])
		if err != nil {
			return a, err
		}
		addr, err := netip.ParseAddr(h.Spec.Address)
		r, inside := q.RangeOf(addr)
		if err != nil || !inside {
			return a, fmt.Errorf("address %s is no longer in pool %s", h.Spec.Address, h.Spec.Pool)
		}
		given = append(given, allocator.Address{Prefix: netip.PrefixFrom(addr, r.Bits), Gateway: r.Gateway, VLAN: r.VLAN,
			Pool: q.Name, Scope: q.Scope, MAC: mac})
	}
	slices.SortFunc(given, func(a, b allocator.Address) int { return netip.Prefix.Compare(a.Prefix, b.Prefix) })
	addresses.Fill(&a, given)
	return a, nil
}

// reservedMAC is the MAC that is reserved with the addresses of a pod; zero for none.
func reservedMAC(held []api.IPAllocation) api.MAC {
	for _, h := range held {
		if h.Spec.Reservation == nil {
			continue
		}
		if mac, err := api.ParseMAC(h.Spec.Reservation.MAC); err == nil && mac[0]&1 == 0 {
			return mac
		}
	}
	return api.MAC{}
}

// rebuildOne checks again under the lock of the host end: during an ADD or a DEL it looks lost, and after a DEL the
// address may be another pod's.
func (p *Pods) rebuildOne(ctx context.Context, a api.Attachment) error {
	if !p.Registry.Locks.TryLock(a.HostIf) {
		return nil
	}
	defer p.Registry.Locks.Unlock(a.HostIf)
	a, still, err := p.stillUnrecorded(a)
	if err != nil || !still {
		return err
	}
	if err := p.Node.Apply(ctx, node.Change{Add: &a, Restores: true}); err != nil {
		return fmt.Errorf("record of container %s: %w", a.ContainerID, err)
	}
	p.Log.Info("restored the lost OVSDB record of a pod that has an interface and a lease; the runtime's DEL removes it",
		"containerID", a.ContainerID, "interface", a.HostIf, "addresses", a.Addrs)
	return nil
}

// stillUnrecorded is the present state of a, which had no record a moment ago. A bridged pod's allocations are not read
// again: a DEL retires the host end before it releases them.
func (p *Pods) stillUnrecorded(a api.Attachment) (now api.Attachment, still bool, err error) {
	routed, bare, err := p.unrecorded()
	if a.Bridged || err != nil {
		return a, slices.Contains(bare, a.HostIf), err
	}
	now, still = routed[a.HostIf]
	return now, still, nil
}

// attachment is what follows from the key of an attachment.
func (p *Pods) attachment(containerID, ifName string) api.Attachment {
	return api.Attachment{ContainerID: containerID, IfName: ifName, HostIf: link.HostName(containerID, ifName),
		MAC: api.LocalMAC("pod " + containerID + " " + ifName), BootID: p.Registry.BootID}
}

// withMask is a lease's address with the mask that the pod got. If the node no longer has the lease's podCIDR, it is
// the address alone.
func (p *Pods) withMask(a netip.Addr) netip.Prefix {
	for _, c := range p.Board.Load().PodCIDRs {
		if c.Contains(a) {
			return netip.PrefixFrom(a, c.Bits())
		}
	}
	return netip.PrefixFrom(a, a.BitLen())
}
