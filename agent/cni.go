package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
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
	bootID  string
	txOff   bool // switch tx checksum offload off in pods
	log     logr.Logger
	metrics *metrics
	busy    busy
	told    map[string]string // broken records that the log tells of

	unfinished unfinished
}

// Add implements cniserver.Handler.
func (p *pods) Add(ctx context.Context, r cniserver.Request) (cniserver.Result, error) {
	k, host := key{r.ContainerID, r.IfName}, link.HostName(r.ContainerID, r.IfName)
	if !p.busy.try(host) {
		return cniserver.Result{}, errBusy()
	}
	defer p.busy.done(host)
	s := p.loop.state.Load()
	if refused := cmp.Or(s.addRefused, s.away); refused != nil {
		return cniserver.Result{}, cniserver.TryAgain(refused.Error())
	}
	if err := p.refuseBridged(ctx, r); err != nil {
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
		if err := p.remove(ctx, k); err != nil {
			return cniserver.Result{}, err
		}
	}
	a, err := p.attach(ctx, r, s)
	if err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		if undoErr := p.remove(undo, k); undoErr != nil {
			p.unfinished.add(host, k)
			p.log.Error(undoErr, "clean-up after a failed ADD; it is tried again within seconds", "container", k.containerID)
		}
		return cniserver.Result{}, err
	}
	p.unfinished.done(host)
	p.log.Info("pod added", "pod", a.Pod(), "addresses", a.Addrs, "interface", a.HostIf)
	return p.result(a, s), nil
}

func errBusy() error {
	return cniserver.TryAgain("another request, or the clean-up after one, works on this container")
}

// attach makes one attachment: address, veth, port and flows.
func (p *pods) attach(ctx context.Context, r cniserver.Request, s *state) (api.Attachment, error) {
	addrs, err := p.allocate(r, s)
	if err != nil {
		return api.Attachment{}, err
	}
	a := p.attachment(r.ContainerID, r.IfName)
	a.Netns, a.Network, a.Addrs = r.Netns, r.Network, addrs
	a.PodNamespace, a.PodName, a.PodUID = r.PodNamespace, r.PodName, r.PodUID
	if err := link.Attach(p.podLink(a, s)); err != nil {
		return a, err
	}
	if err := p.loop.do(ctx, request{add: &a}); err != nil {
		return a, cniserver.TryAgain(err.Error())
	}
	return a, nil
}

func (p *pods) podLink(a api.Attachment, s *state) link.PodLink {
	return link.PodLink{Netns: a.Netns, IfName: a.IfName, HostIf: a.HostIf, MAC: a.MAC, MTU: s.podMTU,
		Addrs: a.Addrs, Gateways: gatewaysOf(a.Addrs), TxOff: p.txOff}
}

// gatewaysOf are the gateways of a pod's own ranges: the first address of
// each, also when the node's podCIDR has changed since.
func gatewaysOf(addrs []netip.Prefix) []netip.Addr {
	var out []netip.Addr
	for _, a := range addrs {
		out = append(out, a.Masked().Addr().Next())
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
	return cniserver.Result{HostIf: a.HostIf, MAC: a.MAC, MTU: s.podMTU, Addrs: a.Addrs, Gateways: gatewaysOf(a.Addrs)}
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
	if err := p.remove(ctx, key{r.ContainerID, r.IfName}); err != nil {
		return err
	}
	if a, ok := known.pods[host]; ok {
		p.log.Info("pod deleted", "pod", a.Pod(), "addresses", a.Addrs, "interface", a.HostIf)
	}
	return nil
}

// remove takes an attachment off the node: flows and port, veth, and last the
// lease, so that the address is free only when nothing uses it any more.
func (p *pods) remove(ctx context.Context, k key) error {
	if err := p.loop.do(ctx, request{del: k}); err != nil {
		return cniserver.TryAgain(err.Error())
	}
	if err := link.Detach(link.HostName(k.containerID, k.ifName)); err != nil {
		return err
	}
	if err := p.leases.Release(k.containerID, k.ifName); err != nil {
		return err
	}
	p.unfinished.done(link.HostName(k.containerID, k.ifName))
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
	return p.loop.state.Load().notReady
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
		err := p.remove(ctx, keyOf(a.Attachment))
		p.busy.done(host)
		if err == nil {
			p.log.Info("garbage collected a pod that the runtime does not know", "pod", a.Pod(), "addresses", a.Addrs)
			p.metrics.reclaimed.WithLabelValues("gc").Inc()
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
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

// refuseBridged refuses a pod that wants its address from an IPPool: one of the
// podCIDR instead would be wrong, silently. So is a pod of which that is not known.
func (p *pods) refuseBridged(ctx context.Context, r cniserver.Request) error {
	if r.PodName == "" { // not of Kubernetes
		return nil
	}
	pod, ns, err := p.loop.source.Pod(ctx, r.PodNamespace, r.PodName, r.PodUID)
	if err != nil {
		return cniserver.TryAgain(err.Error())
	}
	for _, from := range []struct {
		what        string
		annotations map[string]string
	}{{"Pod " + r.PodNamespace + "/" + r.PodName, pod.Annotations}, {"Namespace " + r.PodNamespace, ns.Annotations}} {
		for _, name := range []string{api.AnnotationPools, api.AnnotationPodIPs} {
			if v := strings.TrimSpace(from.annotations[name]); v != "" {
				return types.NewError(cniserver.CodeNotBuilt, fmt.Sprintf("%s asks for %s=%q: addresses from IPPools "+
					"are not built yet. Remove the annotation to get an address of the node's podCIDR", from.what, name, v), "")
			}
		}
	}
	return nil
}
