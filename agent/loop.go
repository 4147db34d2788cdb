package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/agent/inputs"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/datapath/nat"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
	"github.com/fairlead-cni/fairlead/datapath/route"
	"github.com/fairlead-cni/fairlead/openflow"
)

const (
	// resyncEvery bounds how long a change that somebody made by hand stays:
	// then every applier observes the node again.
	resyncEvery = 15 * time.Second
	// roundTimeout bounds one round. ovs-vswitchd answers in milliseconds;
	// one that hangs must not hold up the rest for longer.
	roundTimeout = 10 * time.Second
	// portTimeout is how long a new port may take to get its number.
	portTimeout = 5 * time.Second
	// The first retry after a failed round, and the longest wait between two.
	retryFirst, retryMost = 200 * time.Millisecond, 5 * time.Second
)

// key identifies an attachment, as CNI does.
type key struct{ containerID, ifName string }

func keyOf(a api.Attachment) key { return key{a.ContainerID, a.IfName} }

// request asks the loop to put an attachment on the node (add) or to take one
// off (del). done receives the outcome, once.
type request struct {
	add  *api.Attachment
	del  key
	done chan error
}

// state is what CNI requests and health checks may know of the loop. It is
// replaced, never changed.
type state struct {
	podCIDRs []netip.Prefix
	podMTU   int
	// addRefused says why no pod may be added, though the rest works.
	addRefused error
	// notReady says what does not work. nil means that the node serves pods.
	notReady error
	snapshot *inputs.Snapshot
}

// loop is the only writer of the node.
type loop struct {
	cfg      api.AgentConfig
	nodeName string
	source   inputs.Source
	db       *ovsdb.DB
	mgmt     string // path of the bridge's OpenFlow socket
	log      logr.Logger
	metrics  *metrics

	requests chan request
	state    atomic.Pointer[state]
	firstOK  chan struct{} // closed after the first round without an error

	// Owned by the goroutine in run.
	own       inputs.Node
	transport link.Transport
	flows     *openflow.Switch
	applied   Desired // what link, route and nat have put in place
	full      bool    // the next round observes everything again
	failures  int     // rounds that failed in a row
	problems  []string
}

func newLoop(o Options, source inputs.Source) *loop {
	l := &loop{cfg: o.Config, nodeName: o.NodeName, source: source, log: o.Log.WithName("loop"), metrics: newMetrics(),
		mgmt:     filepath.Join(o.Config.OVSRunDir, o.Config.OVSBridge+".mgmt"),
		requests: make(chan request), firstOK: make(chan struct{})}
	l.state.Store(&state{notReady: errors.New("the agent starts"), snapshot: source.Snapshot()})
	return l
}

// run works until ctx ends.
func (l *loop) run(ctx context.Context) {
	resync := time.NewTicker(resyncEvery)
	defer resync.Stop()
	retry := time.NewTimer(0)
	defer retry.Stop()
	for {
		var waiting []request
		select {
		case <-ctx.Done():
			if l.flows != nil {
				l.flows.Close()
			}
			return
		case r := <-l.requests:
			waiting = append(waiting, r)
		case <-l.source.Changed():
		case <-l.db.Changed():
		case <-l.flowsLost():
			l.log.Info("OpenFlow connection lost", "socket", l.mgmt)
			l.flows = nil
		case <-resync.C:
			l.full = true
		case <-retry.C:
		}
		waiting = append(waiting, l.takeWaiting()...)
		if err := l.round(ctx, waiting); err != nil {
			retry.Reset(l.backOff())
		} else {
			l.failures = 0
		}
	}
}

func (l *loop) flowsLost() <-chan struct{} {
	if l.flows == nil {
		return nil
	}
	return l.flows.Done()
}

// takeWaiting takes the requests of all who wait to send one.
func (l *loop) takeWaiting() []request {
	var out []request
	for {
		select {
		case r := <-l.requests:
			out = append(out, r)
		default:
			return out
		}
	}
}

func (l *loop) backOff() time.Duration {
	wait := min(retryFirst<<min(l.failures, 10), retryMost)
	l.failures++
	return wait
}

// round brings the node to what the inputs and the waiting requests want, and
// answers the requests.
func (l *loop) round(ctx context.Context, waiting []request) error {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	start := time.Now()
	snapshot := l.source.Snapshot()
	conflict := l.takeOwn(snapshot)
	d, podErr, hostErr := l.observeAndApply(ctx, snapshot, waiting)
	err := errors.Join(podErr, hostErr)
	l.publish(snapshot, d, conflict, err)
	l.answer(waiting, podErr)
	l.metrics.round(time.Since(start), err)
	return err
}

// observeAndApply returns what was desired and two errors: of what pods depend
// on, and of the rest.
func (l *loop) observeAndApply(ctx context.Context, snapshot *inputs.Snapshot,
	waiting []request) (d Desired, podErr, hostErr error) {
	if err := l.findTransport(); err != nil {
		return d, err, nil
	}
	obs, err := l.db.Observe(l.cfg.OVSBridge)
	if err != nil {
		return d, err, nil
	}
	d = Desire(Inputs{Config: l.cfg, Own: l.own, Nodes: snapshot.Nodes, Transport: l.transport,
		Attachments: withRequests(obs.Pods, waiting)})
	podErr, hostErr = l.apply(ctx, d, waiting)
	return d, podErr, hostErr
}

// takeOwn follows the node's own Node. One that can't be used (it is gone, or
// another node has the same podCIDR) leaves the last good one in force: pods
// that run keep their addresses, and only new ones are refused.
func (l *loop) takeOwn(s *inputs.Snapshot) error {
	own, err := checkOwn(l.nodeName, s.Nodes, l.source.String())
	if err != nil {
		return err
	}
	if l.own.Name != "" && !slices.Equal(l.own.PodCIDRs, own.PodCIDRs) {
		l.log.Info("podCIDRs of this node changed", "from", l.own.PodCIDRs, "to", own.PodCIDRs)
	}
	l.own = own
	return nil
}

// findTransport looks again at the interface of the node's address. A node
// whose address is away for a moment (DHCP, a flapping link) keeps the last.
func (l *loop) findTransport() error {
	t, err := link.FindTransport(l.own.Addresses, l.cfg.TransportInterface, l.cfg.TransportInterfaceCIDRs,
		l.cfg.HostGateway)
	if err != nil {
		if l.transport.Name != "" {
			return nil
		}
		return err
	}
	if l.transport.Name != "" && !reflect.DeepEqual(l.transport, t) {
		l.log.Info("transport interface changed", "from", l.transport, "to", t)
	}
	l.transport = t
	return nil
}

// withRequests is what is attached now, with the waiting requests carried out.
func withRequests(now []ovsdb.PodPort, waiting []request) []api.Attachment {
	byKey := map[key]api.Attachment{}
	for _, p := range now {
		byKey[keyOf(p.Attachment)] = p.Attachment
	}
	for _, r := range waiting {
		if r.add != nil {
			byKey[keyOf(*r.add)] = *r.add
		} else {
			delete(byKey, r.del)
		}
	}
	out := make([]api.Attachment, 0, len(byKey))
	for _, a := range byKey {
		out = append(out, a)
	}
	return out
}

// apply calls each applier. The first error is of those that pods depend on
// (OVSDB, flows), the second of the others. An applier that fails does not
// stop the next: as much as possible works.
func (l *loop) apply(ctx context.Context, d Desired, waiting []request) (podErr, hostErr error) {
	if err := l.db.Ensure(ctx, d.OVSDB); err != nil {
		return fmt.Errorf("OVSDB: %w", err), nil
	}
	if err := l.waitPorts(ctx, d, waiting); err != nil {
		return err, nil
	}
	if l.flows == nil {
		// ovs-vswitchd may have made every device anew.
		l.full = true
	}
	podErr = l.applyFlows(ctx, d)
	hostErr = l.applyHost(d)
	if podErr == nil {
		// Ports go after their flows: a number that is given to the next
		// pod must have no flow of the last one.
		if err := l.db.Prune(ctx, d.OVSDB); err != nil {
			podErr = fmt.Errorf("OVSDB: %w", err)
		}
	}
	if podErr == nil && hostErr == nil {
		l.full = false
	}
	return podErr, hostErr
}

// waitPorts waits until the gateway, the tunnel and the new pods have port
// numbers. A pod whose port gets none fails alone, in answer.
func (l *loop) waitPorts(ctx context.Context, d Desired, waiting []request) error {
	base := []string{d.OVSDB.Gateway.Name}
	if d.OVSDB.Tunnel != nil {
		base = append(base, d.OVSDB.Tunnel.Name)
	}
	ctx, cancel := context.WithTimeout(ctx, portTimeout)
	defer cancel()
	if err := l.db.WaitOFPorts(ctx, base...); err != nil {
		return err
	}
	var pods []string
	for _, r := range waiting {
		if r.add != nil {
			pods = append(pods, r.add.HostIf)
		}
	}
	if len(pods) > 0 {
		if err := l.db.WaitOFPorts(ctx, pods...); err != nil {
			l.log.Error(err, "a pod's port has no number")
		}
	}
	return nil
}

func (l *loop) applyFlows(ctx context.Context, d Desired) error {
	if l.flows == nil {
		sw, err := openflow.Dial(ctx, l.mgmt, l.log.WithName("openflow"))
		if err != nil {
			return fmt.Errorf("OpenFlow: %w", err)
		}
		l.flows = sw
	} else if l.full {
		l.flows.Resync()
	}
	obs, err := l.db.Observe(l.cfg.OVSBridge)
	if err != nil {
		return err
	}
	want := openflow.Pipeline(d.View(obs))
	changes, err := l.flows.Sync(ctx, want)
	l.metrics.flows(len(want), changes)
	if err != nil {
		return fmt.Errorf("OpenFlow: %w", err)
	}
	return nil
}

// applyHost puts the gateway, the routes and the NAT rules in place, those
// that changed or, in a full round, all.
func (l *loop) applyHost(d Desired) error {
	var errs []error
	if l.full || !reflect.DeepEqual(l.applied.Gateway, d.Gateway) {
		changes, err := link.EnsureGateway(d.Gateway)
		l.told("gateway", changes)
		if err != nil {
			return fmt.Errorf("gateway: %w", err) // routes and rules need it
		}
		l.applied.Gateway = d.Gateway
	}
	if l.full || !reflect.DeepEqual(l.applied.Routes, d.Routes) {
		errs = append(errs, l.applyRoutes(d))
	}
	if l.full || !reflect.DeepEqual(l.applied.NAT, d.NAT) {
		changes, err := nat.Apply(d.NAT)
		l.told("iptables", changes)
		if err != nil {
			errs = append(errs, fmt.Errorf("iptables: %w", err))
		} else {
			l.applied.NAT = d.NAT
		}
	}
	return errors.Join(errs...)
}

func (l *loop) applyRoutes(d Desired) error {
	v4, v6 := families(d.NAT.PodCIDRs)
	forwarding, err := route.EnableForwarding(v4, v6)
	l.told("forwarding", forwarding)
	if err != nil {
		return fmt.Errorf("forwarding: %w", err)
	}
	changes, err := route.Apply(d.Routes)
	if changes != (route.Changes{}) {
		l.told("routes", []string{fmt.Sprintf("%+v", changes)})
	}
	if err != nil {
		return fmt.Errorf("routes: %w", err)
	}
	l.applied.Routes = d.Routes
	return nil
}

// families reports which IP families are among the prefixes.
func families(prefixes []netip.Prefix) (v4, v6 bool) {
	for _, p := range prefixes {
		v4, v6 = v4 || p.Addr().Is4(), v6 || p.Addr().Is6()
	}
	return v4, v6
}

func (l *loop) told(what string, changes []string) {
	for _, c := range changes {
		l.log.Info("changed "+what, "change", c)
	}
	l.metrics.changed(what, len(changes))
}

// answer tells each request how it went. A pod whose port got no number fails
// alone.
func (l *loop) answer(waiting []request, podErr error) {
	ports := map[string]ovsdb.PodPort{}
	if podErr == nil && len(waiting) > 0 {
		obs, err := l.db.Observe(l.cfg.OVSBridge)
		podErr = err
		for _, p := range obs.Pods {
			ports[p.HostIf] = p
		}
	}
	for _, r := range waiting {
		err := podErr
		if err == nil && r.add != nil && ports[r.add.HostIf].OFPort == 0 {
			err = fmt.Errorf("ovs-vswitchd gave the port %s no number: %s", r.add.HostIf, ports[r.add.HostIf].Error)
		}
		r.done <- err
	}
}

// publish makes the outcome of a round known to CNI requests and health checks.
func (l *loop) publish(snapshot *inputs.Snapshot, d Desired, conflict, err error) {
	s := &state{podCIDRs: l.own.PodCIDRs, podMTU: d.PodMTU, addRefused: conflict, snapshot: snapshot,
		notReady: errors.Join(conflict, err)}
	before := l.state.Swap(s)
	if err == nil && !slices.Equal(d.Problems, l.problems) {
		for _, p := range d.Problems {
			if !slices.Contains(l.problems, p) {
				l.log.Info("a node is refused", "problem", p)
			}
		}
		l.problems = d.Problems
	}
	l.metrics.published(s, d)
	switch {
	case s.notReady != nil && (before == nil || before.notReady == nil || before.notReady.Error() != s.notReady.Error()):
		l.log.Error(s.notReady, "not ready")
	case s.notReady == nil && before != nil && before.notReady != nil:
		l.log.Info("the node is as it should be")
	}
	if s.notReady == nil {
		l.once()
	}
}

// once closes firstOK at the first good round.
func (l *loop) once() {
	select {
	case <-l.firstOK:
	default:
		close(l.firstOK)
	}
}
