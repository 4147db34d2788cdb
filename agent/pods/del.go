package pods

import (
	"cmp"
	"context"

	"github.com/fairlead-cni/fairlead/agent/addresses"
	"github.com/fairlead-cni/fairlead/agent/attachments"
	"github.com/fairlead-cni/fairlead/agent/node"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/cniserver"
	"github.com/fairlead-cni/fairlead/datapath/link"
)

// Del implements cniserver.Handler. It needs neither the Pod object nor the record: every step also removes what a
// crash left unfinished.
func (p *Pods) Del(ctx context.Context, r cniserver.Request) error {
	host := link.HostName(r.ContainerID, r.IfName)
	if !p.Registry.Locks.TryLock(host) {
		return addresses.ErrBusy()
	}
	defer p.Registry.Locks.Unlock(host)
	known, err := p.Registry.Records()
	if err != nil {
		return cniserver.TryAgainLater(err)
	}
	if err := p.remove(ctx, attachments.Key{ContainerID: r.ContainerID, IfName: r.IfName}, r.Network); err != nil {
		return err
	}
	if a, ok := known.Pods[host]; ok {
		p.Log.Info("pod deleted", "pod", a.Pod(), "addresses", a.Addrs, "interface", a.HostIf)
	}
	return nil
}

// remove removes an attachment from the node: flows and record, and last the address, so that it is free only when
// nothing uses it any longer. Port and veth, which then have no flows, are removed in the background. network is the
// name in the CNI configuration, for an attachment that is not on record.
func (p *Pods) remove(ctx context.Context, k attachments.Key, network string) error {
	host := link.HostName(k.ContainerID, k.IfName)
	known, err := p.Registry.Records()
	if err != nil {
		return cniserver.TryAgainLater(err)
	}
	a, recorded := known.Pods[host]
	if err := p.Node.Apply(ctx, node.Change{Del: k}); err != nil {
		return cniserver.TryAgainLater(err)
	}
	p.Registry.Reaper.Wake(host)
	if err := p.leases.Release(k.ContainerID, k.IfName); err != nil {
		return err
	}
	// Addresses that an interrupted ADD has taken are on no record.
	if a.Bridged || !recorded && p.Config.EnableBridgingMode {
		o := api.AllocationOwner{ContainerID: k.ContainerID, IfName: k.IfName, Network: cmp.Or(a.Network, network)}
		if err := p.Addresses.Release(ctx, o); err != nil {
			return err
		}
	}
	p.unfinished.done(host)
	return nil
}
