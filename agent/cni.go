package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/cniserver"
	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/ipam/hostlocal"
)

// undoTimeout bounds the clean-up of a failed ADD, which must also run when
// the runtime has given up waiting. It fits in between wire.ServerDeadline and
// wire.ClientDeadline, or nobody would hear the reason.
const undoTimeout = 20 * time.Second

// pods implements cniserver.Handler: what each CNI verb means on this node.
type pods struct {
	loop    *loop
	leases  *hostlocal.Store
	bridged bridged
	warned  warned
	bootID  string
	txOff   bool // switch tx checksum offload off in pods
	log     logr.Logger
	metrics *metrics
	busy    busy
	told    map[string]string // broken records that the log tells of

	unfinished unfinished
	reaper     *reaper
	links      sync.Mutex // held while a veth is made
}

// Add implements cniserver.Handler.
func (p *pods) Add(ctx context.Context, r cniserver.Request) (cniserver.Result, error) {
	k, host := key{r.ContainerID, r.IfName}, link.HostName(r.ContainerID, r.IfName)
	if !p.busy.try(host) {
		return cniserver.Result{}, errBusy()
	}
	defer p.busy.done(host)
	s := p.loop.state.Load()
	if s.away != nil {
		return cniserver.Result{}, cniserver.TryAgain(s.away.Error())
	}
	wish, err := p.wish(ctx, r)
	if err == nil && wish == nil && s.addRefused != nil {
		err = cniserver.TryAgain(s.addRefused.Error())
	}
	if err != nil {
		return cniserver.Result{}, err
	}
	known, err := p.records()
	if err != nil {
		return cniserver.Result{}, cniserver.TryAgain(err.Error())
	}
	if a, ok := known.pods[host]; ok {
		if p.stillGood(a.Attachment, r, s) {
			p.unfinished.done(host)
			return p.result(a.Attachment, s), nil
		}
		if err := p.remove(ctx, k, r.Network); err != nil {
			return cniserver.Result{}, err
		}
	}
	a, err := p.attach(ctx, r, wish, s)
	if err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		if undoErr := p.remove(undo, k, r.Network); undoErr != nil {
			p.unfinished.add(host, failedAdd{k, r.Network})
			p.log.Error(undoErr, "clean-up after a failed ADD; it is tried again within seconds", "container", k.containerID)
		}
		return cniserver.Result{}, err
	}
	p.unfinished.done(host)
	p.log.Info("pod added", "pod", a.Pod(), "addresses", a.Addrs, "interface", a.HostIf, "bridged", a.Bridged, "vlan", a.VLAN)
	p.announceAddrs(a)
	return p.result(a, s), nil
}

func errBusy() error {
	return cniserver.TryAgain("another request, or the clean-up after one, works on this container")
}

// attach makes one attachment: address, veth, port and flows. Without a wish it is a
// routed pod's.
func (p *pods) attach(ctx context.Context, r cniserver.Request, wish *wish, s *state) (
	api.Attachment, error) {
	a := p.attachment(r.ContainerID, r.IfName)
	a.Netns, a.Network = r.Netns, r.Network
	a.PodNamespace, a.PodName, a.PodUID = r.PodNamespace, r.PodName, r.PodUID
	var err error
	if wish == nil {
		a.Addrs, err = p.allocate(r, s)
	} else {
		err = p.bridge(ctx, &a, r, *wish, s)
	}
	if err != nil {
		return a, err
	}
	return a, p.connect(ctx, a, s)
}

// connect makes the veth, and the port and the flows while the pod's end is configured.
func (p *pods) connect(ctx context.Context, a api.Attachment, s *state) error {
	veth, err := p.createVeth(ctx, a, s)
	if err != nil {
		return err
	}
	configured := make(chan error, 1)
	go func() { configured <- veth.Configure() }()
	if err = p.loop.do(ctx, request{add: &a}); err != nil {
		err = cniserver.TryAgain(err.Error())
	}
	return errors.Join(<-configured, err)
}

// createVeth makes the veth. Whoever had its name before, on the node or in the pod, may still wait to be removed.
// That must be over before: ovs-vswitchd may take the new interface for the one before.
func (p *pods) createVeth(ctx context.Context, a api.Attachment, s *state) (*link.Veth, error) {
	if p.reaper.has(a.HostIf) {
		if err := p.reaper.clear(ctx); err != nil {
			return nil, cniserver.TryAgain(err.Error())
		}
	}
	veth, err := p.makeVeth(a, s)
	if errors.Is(err, link.ErrTaken) && p.reaper.clear(ctx) == nil {
		return p.makeVeth(a, s)
	}
	return veth, err
}

func (p *pods) makeVeth(a api.Attachment, s *state) (*link.Veth, error) {
	p.loop.making.Add(1)
	defer p.loop.making.Add(-1)
	p.links.Lock()
	defer p.links.Unlock()
	return link.Create(p.podLink(a, s))
}

func (p *pods) podLink(a api.Attachment, s *state) link.PodLink {
	return link.PodLink{Netns: a.Netns, IfName: a.IfName, HostIf: a.HostIf, MAC: a.MAC, MTU: s.mtuOf(a),
		Addrs: a.Addrs, Gateways: gatewaysOf(a), TxOff: p.txOff}
}

// gatewaysOf are the gateways of a pod: of its pools, else of its podCIDRs, in each the
// first address, also when the node's podCIDR has changed since.
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

// stillGood reports whether a is what r asks for, so that a repeated ADD gets
// the answer of the first.
func (p *pods) stillGood(a api.Attachment, r cniserver.Request, s *state) bool {
	if a.Netns == "" { // rebuilt: see rebuild
		a.Netns, a.Network = r.Netns, r.Network
	}
	return a.Netns == r.Netns && a.Network == r.Network && a.BootID == p.bootID &&
		link.Check(p.podLink(a, s)) == nil
}

func (p *pods) result(a api.Attachment, s *state) cniserver.Result {
	return cniserver.Result{HostIf: a.HostIf, MAC: a.MAC, MTU: s.mtuOf(a), Addrs: a.Addrs, Gateways: gatewaysOf(a)}
}

// Del implements cniserver.Handler. It needs neither the Pod object nor the
// record: every step also removes what a crash left half made.
func (p *pods) Del(ctx context.Context, r cniserver.Request) error {
	host := link.HostName(r.ContainerID, r.IfName)
	if !p.busy.try(host) {
		return errBusy()
	}
	defer p.busy.done(host)
	known, err := p.records()
	if err != nil {
		return cniserver.TryAgain(err.Error())
	}
	if err := p.remove(ctx, key{r.ContainerID, r.IfName}, r.Network); err != nil {
		return err
	}
	if a, ok := known.pods[host]; ok {
		p.log.Info("pod deleted", "pod", a.Pod(), "addresses", a.Addrs, "interface", a.HostIf)
	}
	return nil
}

// remove takes an attachment off the node: flows and record, and last the
// address, so that it is free only when nothing uses it any more. Port and veth, which
// lead nowhere then, go in the background. network is the
// name in the CNI configuration, for an attachment that is not on record.
func (p *pods) remove(ctx context.Context, k key, network string) error {
	host := link.HostName(k.containerID, k.ifName)
	known, err := p.records()
	if err != nil {
		return cniserver.TryAgain(err.Error())
	}
	a, recorded := known.pods[host]
	if err := p.loop.do(ctx, request{del: k}); err != nil {
		return cniserver.TryAgain(err.Error())
	}
	p.reaper.wake(host)
	if err := p.leases.Release(k.containerID, k.ifName); err != nil {
		return err
	}
	// What an ADD that was cut short has taken is on no record.
	if a.Bridged || !recorded && p.loop.cfg.EnableBridgingMode {
		o := api.AllocationOwner{ContainerID: k.containerID, IfName: k.ifName, Network: cmp.Or(a.Network, network)}
		if err := p.giveBack(ctx, o); err != nil {
			return err
		}
	}
	p.unfinished.done(host)
	return nil
}

// Check implements cniserver.Handler.
func (p *pods) Check(ctx context.Context, r cniserver.Request) error {
	known, err := p.records()
	if err != nil {
		return err
	}
	host := link.HostName(r.ContainerID, r.IfName)
	a, ok := known.pods[host]
	if why, broken := known.broken[host]; broken {
		return fmt.Errorf("the record of interface %s of container %s can't be read: %s", r.IfName, r.ContainerID, why)
	}
	if !ok {
		return fmt.Errorf("interface %s of container %s is not known on this node", r.IfName, r.ContainerID)
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
	if err := link.Check(p.podLink(a.Attachment, p.loop.state.Load())); err != nil {
		return err
	}
	if a.OFPort == 0 {
		return fmt.Errorf("ovs-vswitchd does not carry the port %s: %s", a.HostIf, a.Error)
	}
	s := p.loop.state.Load()
	if a.Bridged {
		return errors.Join(s.notReady, s.noUplink, p.checkHeld(ctx, a.Attachment))
	}
	return s.notReady
}

// GC implements cniserver.Handler: attachments of the named network that the
// runtime does not list are removed. Other networks are not touched.
func (p *pods) GC(ctx context.Context, network string, valid []cniserver.AttachmentID) error {
	keep := map[key]bool{}
	for _, v := range valid {
		keep[key{v.ContainerID, v.IfName}] = true
	}
	known, err := p.records()
	if err != nil {
		return cniserver.TryAgain(err.Error())
	}
	var errs []error
	for host, a := range known.pods {
		if k := keyOf(a.Attachment); a.Network != network || keep[k] || !p.busy.try(host) {
			continue
		}
		err := p.remove(ctx, keyOf(a.Attachment), network)
		p.busy.done(host)
		if err == nil {
			p.log.Info("garbage collected a pod that the runtime does not know", "pod", a.Pod(), "addresses", a.Addrs)
			p.metrics.reclaimed.WithLabelValues("gc").Inc()
		}
		errs = append(errs, err)
	}
	return errors.Join(append(errs, p.gcAllocations(ctx, network, keep))...)
}

// Status implements cniserver.Handler.
func (p *pods) Status(context.Context) error {
	return p.loop.state.Load().notReady
}

// do hands a request to the loop and waits for the answer.
func (l *loop) do(ctx context.Context, r request) error {
	r.done = make(chan error, 1)
	select {
	case l.requests <- r:
	case <-ctx.Done():
		return fmt.Errorf("the node was not ready to take the request: %w", ctx.Err())
	}
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("the node did not finish the request: %w", ctx.Err())
	}
}
