package pods

import (
	"context"
	"errors"
	"net/netip"

	"github.com/fairlead-cni/fairlead/agent/addresses"
	"github.com/fairlead-cni/fairlead/agent/attachments"
	"github.com/fairlead-cni/fairlead/agent/node"
	"github.com/fairlead-cni/fairlead/agent/status"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/cniserver"
	"github.com/fairlead-cni/fairlead/datapath/link"
)

// Add implements cniserver.Handler.
func (p *Pods) Add(ctx context.Context, r cniserver.Request) (cniserver.Result, error) {
	k, host := attachments.Key{ContainerID: r.ContainerID, IfName: r.IfName}, link.HostName(r.ContainerID, r.IfName)
	if !p.Registry.Locks.TryLock(host) {
		return cniserver.Result{}, addresses.ErrBusy()
	}
	defer p.Registry.Locks.Unlock(host)
	s := p.Board.Load()
	if s.OVSDown != nil {
		return cniserver.Result{}, cniserver.TryAgainLater(s.OVSDown)
	}
	asked, err := p.Addresses.Request(ctx, r)
	if err == nil && asked == nil && s.AddRefused != nil {
		err = cniserver.TryAgainLater(s.AddRefused)
	}
	if err != nil {
		return cniserver.Result{}, err
	}
	known, err := p.Registry.Records()
	if err != nil {
		return cniserver.Result{}, cniserver.TryAgainLater(err)
	}
	if a, ok := known.Pods[host]; ok {
		if p.matches(a.Attachment, r, s) {
			p.unfinished.done(host)
			return p.result(a.Attachment, s), nil
		}
		if err := p.remove(ctx, k, r.Network); err != nil {
			return cniserver.Result{}, err
		}
	}
	a, err := p.attach(ctx, r, asked, s)
	if err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		if undoErr := p.remove(undo, k, r.Network); undoErr != nil {
			p.unfinished.add(host, failedAdd{k, r.Network})
			p.Log.Error(undoErr, "clean-up after a failed ADD, will retry within seconds", "containerID", k.ContainerID)
		}
		return cniserver.Result{}, err
	}
	p.unfinished.done(host)
	p.Log.Info("pod added", "pod", a.Pod(), "addresses", a.Addrs, "interface", a.HostIf, "bridged", a.Bridged, "vlan", a.VLAN)
	p.Addresses.Announce(a)
	return p.result(a, s), nil
}

// attach makes one attachment: address, veth, port and flows. Without requested pools, it is a routed pod's.
func (p *Pods) attach(ctx context.Context, r cniserver.Request, asked *addresses.PoolRequest, s *status.Status) (
	api.Attachment, error) {
	a := p.attachment(r.ContainerID, r.IfName)
	a.Netns, a.Network = r.Netns, r.Network
	a.PodNamespace, a.PodName, a.PodUID = r.PodNamespace, r.PodName, r.PodUID
	var err error
	if asked == nil {
		a.Addrs, err = p.allocate(r, s)
	} else {
		err = p.Addresses.Assign(ctx, &a, r, *asked, s)
	}
	if err != nil {
		return a, err
	}
	return a, p.connect(ctx, a, s)
}

// connect creates the veth, and the port and the flows while the pod's end is configured.
func (p *Pods) connect(ctx context.Context, a api.Attachment, s *status.Status) error {
	veth, err := p.createVeth(ctx, a, s)
	if err != nil {
		return err
	}
	configured := make(chan error, 1)
	go func() { configured <- veth.Configure() }()
	if err = p.Node.Apply(ctx, node.Change{Add: &a}); err != nil {
		err = cniserver.TryAgainLater(err)
	}
	return errors.Join(<-configured, err)
}

// createVeth creates the veth. An earlier interface of the same name, on the node or in the pod, may still wait to be
// removed. That must happen first: ovs-vswitchd may take the new interface for the old one.
func (p *Pods) createVeth(ctx context.Context, a api.Attachment, s *status.Status) (*link.Veth, error) {
	if p.Registry.Reaper.Has(a.HostIf) {
		if err := p.Registry.Reaper.Clear(ctx); err != nil {
			return nil, cniserver.TryAgainLater(err)
		}
	}
	veth, err := p.makeVeth(a, s)
	if errors.Is(err, link.ErrTaken) && p.Registry.Reaper.Clear(ctx) == nil {
		return p.makeVeth(a, s)
	}
	return veth, err
}

func (p *Pods) makeVeth(a api.Attachment, s *status.Status) (*link.Veth, error) {
	defer p.Node.ExpectAdd()()
	p.links.Lock()
	defer p.links.Unlock()
	return link.Create(p.podLink(a, s))
}

func (p *Pods) podLink(a api.Attachment, s *status.Status) link.PodLink {
	return link.PodLink{Netns: a.Netns, IfName: a.IfName, HostIf: a.HostIf, MAC: a.MAC, MTU: s.MTUOf(a),
		Addrs: a.Addrs, Gateways: gatewaysOf(a), TxOff: p.txOff}
}

// gatewaysOf are the gateways of a pod: those of its pools, or else the first address of each of its podCIDRs, even if
// the node's podCIDR has changed since.
func gatewaysOf(a api.Attachment) []netip.Addr {
	if a.Bridged {
		return a.Gateways
	}
	var out []netip.Addr
	for _, p := range a.Addrs {
		out = append(out, p.Masked().Addr().Next())
	}
	return out
}

// matches reports whether a is what r asks for, so that a repeated ADD gets the same answer as the first.
func (p *Pods) matches(a api.Attachment, r cniserver.Request, s *status.Status) bool {
	if a.Netns == "" { // rebuilt: see rebuild
		a.Netns, a.Network = r.Netns, r.Network
	}
	return a.Netns == r.Netns && a.Network == r.Network && a.BootID == p.Registry.BootID &&
		link.Check(p.podLink(a, s)) == nil
}

func (p *Pods) result(a api.Attachment, s *status.Status) cniserver.Result {
	return cniserver.Result{HostIf: a.HostIf, MAC: a.MAC, MTU: s.MTUOf(a), Addrs: a.Addrs, Gateways: gatewaysOf(a)}
}
