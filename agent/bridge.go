package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/cniserver"
	"github.com/fairlead-cni/fairlead/datapath/wire"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/ipam/allocator"
	"github.com/fairlead-cni/fairlead/ipam/pool"
	"github.com/fairlead-cni/fairlead/ipam/selection"
)

// bridged is what gives bridged pods their addresses.
type bridged struct {
	store allocation.Store
	*allocator.Allocator
	owed    owed // addresses that could not be given back yet
	prober  *prober
	witness witness
}

func (p *pods) newBridged(o Options) error {
	p.bridged.prober = &prober{loop: p.loop, timeout: o.Config.IPAM.ConflictProbeTimeout,
		more: make(chan struct{}, 1)}
	p.bridged.owed = owed{dir: owedDir}
	if p.loop.kube != nil {
		p.bridged.store = allocation.NewKubernetes(p.loop.kube.Dynamic)
	} else {
		d, err := allocation.NewDirectory(o.Config.IPAM.AllocationsDir)
		if err != nil {
			return err
		}
		p.bridged.store = d
	}
	c := allocator.Config{Store: p.bridged.store, Node: o.NodeName, Cooling: o.Config.IPAM.CoolingPeriod,
		Probe: p.probe, MAC: bridgedMAC, Log: p.log.WithName("ipam")}
	p.bridged.Allocator = allocator.New(c)
	p.newWitness()
	return nil
}

// wish is what a bridged pod asks for.
type wish struct {
	selection.Wish
	// keep says for whom its addresses are kept; nil for nobody.
	keep *api.AllocationReservation
}

// wish returns what a pod's annotations ask for; nil is a routed pod. A pod of which
// that is not known waits: an address of the podCIDR instead would be wrong, silently.
func (p *pods) wish(ctx context.Context, r cniserver.Request) (*wish, error) {
	if r.PodName == "" { // not of Kubernetes
		return nil, nil
	}
	pod, ns, err := p.loop.source.Pod(ctx, r.PodNamespace, r.PodName, r.PodUID)
	if err != nil {
		return nil, cniserver.TryAgain(err.Error())
	}
	of := member(r, pod)
	in := selection.Object{Name: "Namespace " + r.PodNamespace, Annotations: ns.Annotations}
	if !selection.Asks(of.Object, in) {
		if _, asks := pod.Annotations[api.AnnotationSticky]; asks {
			return nil, p.refused(r, fmt.Errorf("%s has the annotation %s, and only addresses of IPPools can be kept: add %s, or "+
				"remove it", of.Name, api.AnnotationSticky, api.AnnotationPools))
		}
		return nil, nil
	}
	if !p.loop.cfg.EnableBridgingMode {
		return nil, p.refused(r, fmt.Errorf("%s asks for an address of an IPPool (annotations %s and %s, of it or of its "+
			"Namespace), and node %s bridges no pods: set enableBridgingMode: true in its agent's config, or remove the "+
			"annotations", of.Name, api.AnnotationPools, api.AnnotationPodIPs, p.loop.nodeName))
	}
	keep, err := p.keep(ctx, of)
	if err != nil {
		return nil, p.answered(r, err)
	}
	w, err := p.asked(ctx, of, in)
	if err != nil {
		return nil, p.answered(r, err)
	}
	return &wish{w, keep}, nil
}

// refused is the answer where somebody must change something. The Pod gets an Event.
func (p *pods) refused(r cniserver.Request, err error) error {
	p.warn(r, reasonNoAddress, err.Error())
	return cniserver.NoAddress(err)
}

// later is the answer where it may be better soon.
func (p *pods) later(r cniserver.Request, err error) error {
	p.warn(r, reasonNoAddress, err.Error())
	return cniserver.TryAgain(err.Error())
}

// bridge makes a the attachment of a bridged pod: addresses, and what comes with them.
func (p *pods) bridge(ctx context.Context, a *api.Attachment, r cniserver.Request, w wish, s *state) error {
	if s.noUplink != nil {
		return p.later(r, s.noUplink)
	}
	pools, err := p.choose(ctx, r, w.Wish, s)
	if err != nil {
		return err
	}
	given, err := p.allocateFrom(ctx, r, allocator.Request{
		Pools: pools, PodIPs: w.PodIPs, Owner: p.owner(*a), Keep: w.keep})
	if err != nil {
		return p.notGiven(r, err)
	}
	fill(a, given)
	return nil
}

// fill says in a what was given.
func fill(a *api.Attachment, given []allocator.Address) {
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

// bridgedMAC is made from the pod's first address: whoever has the address next, on
// whatever node, has the same MAC, and no neighbour has a wrong one.
func bridgedMAC(first allocator.Address) api.MAC {
	return localMAC(fmt.Sprintf("bridged %s %d %s", first.Scope, first.VLAN, first.Prefix.Addr()))
}

func (p *pods) owner(a api.Attachment) api.AllocationOwner {
	return api.AllocationOwner{PodUID: a.PodUID, Namespace: a.PodNamespace, Name: a.PodName, ContainerID: a.ContainerID,
		IfName: a.IfName, Network: a.Network, Node: p.loop.nodeName, Netns: a.Netns, BootID: a.BootID}
}

// choose returns the pools that w names, if they are fit to hand out addresses here.
func (p *pods) choose(ctx context.Context, r cniserver.Request, w selection.Wish, s *state) ([]pool.Pool, error) {
	known, err := p.knownPools(ctx, w.Pools)
	if err != nil {
		return nil, err
	}
	known.Devices = s.vlanDevices
	pools, err := w.Choose(known)
	if err != nil {
		return nil, p.refused(r, err)
	}
	return pools, nil
}

// knownPools are the cluster's pools as far as the agent follows them, and the named ones.
func (p *pods) knownPools(ctx context.Context, names []string) (selection.Known, error) {
	snapshot := p.loop.source.Snapshot()
	all := maps.Clone(snapshot.IPPools)
	if all == nil {
		all = map[string]api.IPPool{}
	}
	for _, name := range names {
		if _, known := all[name]; known {
			continue
		}
		object, found, err := p.loop.source.Pool(ctx, name)
		if err != nil {
			return selection.Known{}, cniserver.TryAgain(err.Error())
		}
		if found {
			all[name] = object
		}
	}
	others := pool.Others{PodCIDRs: map[string][]netip.Prefix{}, NodeAddresses: map[string][]netip.Addr{},
		ServiceCIDRs: p.loop.cfg.ServiceCIDRs()}
	for name, n := range snapshot.Nodes {
		others.PodCIDRs[name], others.NodeAddresses[name] = n.PodCIDRs, n.Addresses
	}
	return selection.Known{IPPools: all, Others: others}, nil
}

// allocateFrom takes addresses, and tells of those that somebody on the wire has.
func (p *pods) allocateFrom(ctx context.Context, r cniserver.Request, want allocator.Request) (
	[]allocator.Address, error) {
	// What this container was given before it was taken off, maybe while the API
	// server was away, is given back first: else that would be done afterwards.
	if err := p.settle(ctx, want.Owner); err != nil {
		return nil, err
	}
	found := &conflicts{}
	given, err := p.bridged.Allocate(found.in(ctx), want)
	for _, c := range found.all() {
		p.metrics.conflicts.Inc()
		p.warn(r, reasonConflict, c.String())
	}
	if err == nil {
		p.metrics.given.Add(float64(len(given)))
		p.bridged.prober.use(want.Pools)
	}
	return given, err
}

// notGiven is the answer for an error of the allocator.
func (p *pods) notGiven(r cniserver.Request, err error) error {
	var coded *types.Error
	var full *allocator.ExhaustedError
	var ip *allocator.PodIPError
	var vlan *allocator.VLANError
	var sticky *allocator.StickyError
	var answers *allocator.AnswersError
	switch {
	case errors.As(err, &sticky), errors.As(err, &answers):
		return p.later(r, fmt.Errorf("pod %s/%s waits for its address: %w", r.PodNamespace, r.PodName, err))
	case errors.As(err, &coded):
		return err
	case errors.As(err, &full):
		return p.later(r, fmt.Errorf("pod %s/%s gets no address: %w", r.PodNamespace, r.PodName, err))
	case errors.As(err, &ip) && ip.Holder != nil:
		return p.later(r, fmt.Errorf("pod %s/%s waits for its address: %w", r.PodNamespace, r.PodName, err))
	case errors.As(err, &ip), errors.As(err, &vlan):
		return p.refused(r, fmt.Errorf("pod %s/%s: %w", r.PodNamespace, r.PodName, err))
	}
	return p.later(r, fmt.Errorf("pod %s/%s gets no address of an IPPool now: %w", r.PodNamespace, r.PodName, err))
}

// announce tells the underlay where a bridged pod is. It takes seconds, and nobody
// waits for it: the first frame goes out at once.
func (p *pods) announceAddrs(a api.Attachment) {
	if !a.Bridged {
		return
	}
	var addrs []netip.Addr
	for _, prefix := range a.Addrs {
		addrs = append(addrs, prefix.Addr())
	}
	go func() {
		if err := wire.Announce(context.Background(), a.Netns, a.IfName, a.MAC, addrs); err != nil {
			p.log.V(1).Info("a pod's addresses were not announced to the end: it may be gone", "pod", a.Pod(), "why", err.Error())
		}
	}()
}

// underlayMTU is the MTU of bridged pods in bytes, given that of the transport
// interface: no tunnel takes any of it.
func underlayMTU(cfg api.AgentConfig, transport int) int {
	if cfg.DefaultMTU != 0 {
		return min(cfg.DefaultMTU, transport)
	}
	return transport
}

// noUplink says why bridged pods can't be put onto the underlay; nil when they can.
func (l *loop) noUplink() error {
	err := l.uplink.ready()
	if err == nil && l.uplinkPort == 0 {
		err = fmt.Errorf("Open vSwitch has not joined %s and the uplink's bridge yet", l.cfg.OVSBridge)
	}
	if err == nil {
		return nil
	}
	return fmt.Errorf("node %s puts no bridged pods onto the underlay: %w", l.nodeName, err)
}

// nic is the interface on which the underlay is asked.
func (l *loop) nic() string {
	return cmp.Or(l.uplink.status.Load().nic, l.transport.Name)
}
