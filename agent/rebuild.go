package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/link"
)

// rebuild writes records anew that OVSDB has lost while no agent ran, as when
// its database was deleted: a veth with a lease is a pod that may well run. It
// looks the same after an ADD or a DEL that was cut short, and is then taken
// off by the runtime's DEL. What only the record knew, the pod's name and the
// path of its network namespace, stays empty.
func (p *pods) rebuild(ctx context.Context) error {
	lost, err := p.lost()
	if err != nil {
		return err
	}
	var errs []error
	for host := range lost {
		errs = append(errs, p.rebuildOne(ctx, host))
	}
	return errors.Join(errs...)
}

// lost are the attachments without a record, by host end.
func (p *pods) lost() (map[string]api.Attachment, error) {
	known, err := p.records()
	if err != nil {
		return nil, err
	}
	hosts, err := link.Hosts()
	if err != nil {
		return nil, fmt.Errorf("listing pods' interfaces: %w", err)
	}
	leases, err := p.leases.Leases()
	if err != nil {
		return nil, fmt.Errorf("listing leases: %w", err)
	}
	lost := map[string]api.Attachment{}
	for _, l := range leases {
		host := link.HostName(l.ContainerID, l.IfName)
		if !slices.Contains(hosts, host) || known.has(host) || p.unfinished.has(host) {
			continue
		}
		a, ok := lost[host]
		if !ok {
			a = p.attachment(l.ContainerID, l.IfName)
		}
		a.Addrs = append(a.Addrs, p.withMask(l.Addr))
		lost[host] = a
	}
	return lost, nil
}

// rebuildOne looks again, now that no request works on the host end: in the middle
// of an ADD or a DEL it looks lost, and after a DEL the address is somebody else's.
func (p *pods) rebuildOne(ctx context.Context, host string) error {
	if !p.busy.try(host) {
		return nil
	}
	defer p.busy.done(host)
	lost, err := p.lost()
	a, still := lost[host]
	if err != nil || !still {
		return err
	}
	if err := p.loop.do(ctx, request{add: &a, runs: true}); err != nil {
		return fmt.Errorf("record of container %s: %w", a.ContainerID, err)
	}
	p.log.Info("OVSDB had no record of a pod that has an interface and a lease: it is written anew. "+
		"The runtime's DEL takes it off", "container", a.ContainerID, "interface", host, "addresses", a.Addrs)
	return nil
}

// attachment is what can be told of an attachment from its key.
func (p *pods) attachment(containerID, ifName string) api.Attachment {
	return api.Attachment{ContainerID: containerID, IfName: ifName, HostIf: link.HostName(containerID, ifName),
		MAC: localMAC("pod " + containerID + " " + ifName), BootID: p.bootID}
}

// withMask is a lease's address as the pod was given it. A lease of a podCIDR
// that the node no longer has keeps the address alone.
func (p *pods) withMask(a netip.Addr) netip.Prefix {
	for _, c := range p.loop.state.Load().podCIDRs {
		if c.Contains(a) {
			return netip.PrefixFrom(a, c.Bits())
		}
	}
	return netip.PrefixFrom(a, a.BitLen())
}

// has reports whether the host end has a record, readable or not.
func (r records) has(host string) bool {
	_, ok := r.pods[host]
	_, broken := r.broken[host]
	return ok || broken
}
