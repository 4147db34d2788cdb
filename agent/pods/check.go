package pods

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/fairlead-cni/fairlead/agent/attachments"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/cniserver"
	"github.com/fairlead-cni/fairlead/datapath/link"
)

// Check implements cniserver.Handler.
func (p *Pods) Check(ctx context.Context, r cniserver.Request) error {
	known, err := p.Registry.Records()
	if err != nil {
		return err
	}
	host := link.HostName(r.ContainerID, r.IfName)
	a, ok := known.Pods[host]
	if why, broken := known.Broken[host]; broken {
		return fmt.Errorf("the record of interface %s of container %s is unreadable: %s", r.IfName, r.ContainerID, why)
	}
	if !ok {
		return fmt.Errorf("interface %s of container %s has no record on this node", r.IfName, r.ContainerID)
	}
	if a.Netns == "" { // rebuilt: see rebuild
		a.Netns = r.Netns
	}
	if a.Netns != r.Netns {
		return fmt.Errorf("interface %s is in network namespace %s, not in %s", r.IfName, a.Netns, r.Netns)
	}
	for _, addr := range r.PrevAddrs {
		if !slices.Contains(a.Addrs, addr) {
			return fmt.Errorf("prevResult has the address %s, but the pod was given %v", addr, a.Addrs)
		}
	}
	if err := link.Check(p.podLink(a.Attachment, p.Board.Load())); err != nil {
		return err
	}
	if a.OFPort == 0 {
		return fmt.Errorf("ovs-vswitchd has not added port %s: %s", a.HostIf, cmp.Or(a.Error, "is it running?"))
	}
	s := p.Board.Load()
	if a.Bridged {
		return errors.Join(s.NotReady, s.NoUplink, p.Addresses.Check(ctx, a.Attachment))
	}
	return s.NotReady
}

// GC implements cniserver.Handler: attachments of the named network that the
// runtime does not list are removed. Other networks are not touched.
func (p *Pods) GC(ctx context.Context, network string, valid []cniserver.AttachmentID) error {
	keep := map[attachments.Key]bool{}
	for _, v := range valid {
		keep[attachments.Key{ContainerID: v.ContainerID, IfName: v.IfName}] = true
	}
	known, err := p.Registry.Records()
	if err != nil {
		return cniserver.TryAgainLater(err)
	}
	var errs []error
	for host, a := range known.Pods {
		if k := attachments.KeyOf(a.Attachment); a.Network != network || keep[k] || !p.Registry.Locks.TryLock(host) {
			continue
		}
		err := p.remove(ctx, attachments.KeyOf(a.Attachment), network)
		p.Registry.Locks.Unlock(host)
		if err == nil {
			p.Log.Info("garbage collected a pod unknown to the runtime", "pod", a.Pod(), "addresses", a.Addrs)
			p.Metrics.Pods.Reclaimed.WithLabelValues("gc").Inc()
		}
		errs = append(errs, err)
	}
	return errors.Join(append(errs, p.gcAllocations(ctx, network, keep))...)
}

// Status implements cniserver.Handler.
func (p *Pods) Status(context.Context) error {
	return p.Board.Load().NotReady
}

// gcAllocations releases the allocations of containers that have no record and that the runtime does not list.
func (p *Pods) gcAllocations(ctx context.Context, network string, keep map[attachments.Key]bool) error {
	orphaned, err := p.Addresses.Orphaned(ctx, network, keep)
	errs := []error{err}
	for _, h := range orphaned {
		errs = append(errs, p.gcAllocation(ctx, h))
	}
	return errors.Join(errs...)
}

func (p *Pods) gcAllocation(ctx context.Context, h api.IPAllocation) error {
	o := h.Spec.Owner
	host := attachments.HostOf(o)
	if !p.Registry.Locks.TryLock(host) {
		return nil
	}
	defer p.Registry.Locks.Unlock(host)
	known, err := p.Registry.Records()
	if err != nil || known.Has(host) {
		return err
	}
	if err := p.remove(ctx, attachments.Key{ContainerID: o.ContainerID, IfName: o.IfName}, o.Network); err != nil {
		return err
	}
	p.Log.Info("garbage collected the address of a pod unknown to the runtime", "address", h.Spec.Address,
		"owner", o.String())
	p.Metrics.Pods.Reclaimed.WithLabelValues("gc").Inc()
	return nil
}
