package agent

import (
	"cmp"
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

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
	"github.com/fairlead-cni/fairlead/kube"
	"github.com/fairlead-cni/fairlead/kube/inputs"
	"github.com/fairlead-cni/fairlead/openflow"
)

const (
	// resyncEvery bounds how long a change that somebody made by hand stays:
	// then every applier observes the node again.
	resyncEvery = 15 * time.Second
	// roundTimeout bounds one round. ovs-vswitchd answers in milliseconds;
	// one that hangs must not hold up the rest for longer.
	roundTimeout = 10 * time.Second
	// transportEvery is how often, at most, ADDs and DELs have the interfaces and
	// addresses of the node listed: it takes longer the more pods there are.
	transportEvery = time.Second
	// portTimeout is how long a new port may take to get its number.
	portTimeout = 5 * time.Second
	// gatherMost is how long a round waits for ADDs whose veths are being made.
	gatherMost = 50 * time.Millisecond
	// tunnelTimeout is how long the pods of this node may wait for the tunnel.
	tunnelTimeout = 2 * time.Second
	// The first retry after a failed round, and the longest wait between two.
	// While Open vSwitch is away every wait is as long as the first: asking
	// costs nothing, and pods and node wait for the answer.
	retryFirst, retryMost = 200 * time.Millisecond, 5 * time.Second
)

// key identifies an attachment, as CNI does.
type key struct{ containerID, ifName string }

func keyOf(a api.Attachment) key { return key{a.ContainerID, a.IfName} }

// request asks the loop to put an attachment on the node (add) or to take one
// off (del). done receives the outcome, once.
type request struct {
	add  *api.Attachment
	runs bool // the pod of add runs already: its record is put back
	del  key
	done chan error
}

// loop is the only writer of the node.
type loop struct {
	cfg      api.AgentConfig
	nodeName string
	source   inputs.Source
	kube     *kube.Client // nil where inputs come from a directory
	advice   *adviser
	uplink   *nodeUplink
	db       *ovsdb.DB
	mgmt     string // path of the bridge's OpenFlow socket
	log      logr.Logger
	metrics  *metrics

	requests chan request
	state    atomic.Pointer[state]
	seen     seen
	firstOK  chan struct{} // closed after the first round without an error
	serving  atomic.Bool   // CNI requests are answered and the runtime knows
	making   atomic.Int32  // ADDs whose veths are being made

	// Owned by the goroutine in run.
	own       inputs.Node
	nodes     map[string]inputs.Node
	transport link.Transport
	looked    time.Time // when the node was searched for the transport
	needed    []link.Needed
	nodeAddrs []netip.Addr
	// vlanDevices are the VLAN sub-interfaces of the transport interface, by VLAN.
	vlanDevices map[uint16]string
	uplinkPort  uint32 // OpenFlow port number of the uplink; 0 is none
	flows       *openflow.Switch
	applied     Desired // what was put in place, or waited for
	full        bool    // the next round observes everything again
	failures    int     // rounds that failed in a row
	wait        restoreWait
	rules       rules
	wantView    openflow.View   // what wantFlows are for
	wantFlows   []openflow.Flow // what the switch confirmed last
	settled     bool            // OVSDB and flows were as desired after the last round
	counted     counted         // what the confirmed flows took from OVSDB
	problems    []string
	strays      []string // pods outside of the podCIDRs, as last told
	routed      []string // podCIDRs left to the underlay's routers, as last told
	otherMTU    []string // host ends of pods with another MTU than pods get now
}

func newLoop(o Options, source inputs.Source) *loop {
	l := &loop{cfg: o.Config, nodeName: o.NodeName, source: source, log: o.Log.WithName("loop"), metrics: newMetrics(),
		mgmt:     filepath.Join(o.Config.OVSRunDir, o.Config.OVSBridge+".mgmt"),
		requests: make(chan request), firstOK: make(chan struct{}),
		rules: rules{done: make(chan rulesLook, 1)}, advice: newAdviser(nil, o.NodeName, o.Log)}
	l.state.Store(&state{notReady: errors.New("the agent starts"), snapshot: source.Snapshot()})
	return l
}

// run works until ctx ends.
func (l *loop) run(ctx context.Context) {
	resync := time.NewTicker(resyncEvery)
	defer resync.Stop()
	guard := time.NewTicker(guardEvery)
	defer guard.Stop()
	retry := time.NewTimer(0)
	defer retry.Stop()
	for {
		var waiting []request
		select {
		case <-ctx.Done():
			if l.flows != nil {
				l.flows.Close()
			}
			if l.rules.busy {
				l.takeRules(<-l.rules.done) // nobody would finish its work
			}
			return
		case r := <-l.requests:
			waiting = append(waiting, r)
		case <-l.source.Changed():
		case <-l.advice.changed:
		case <-l.uplink.changed:
			l.full = true
		case <-l.db.Changed():
			if l.asApplied(ctx) {
				continue // it was the last round's own doing, or nothing of ours
			}
		case look := <-l.rules.done:
			if !l.takeRules(look) {
				continue
			}
		case <-l.flowsLost():
		case <-resync.C:
			l.full = true
		case <-guard.C:
			if !l.waitChanged() {
				continue
			}
		case <-retry.C:
		}
		l.forgetLostFlows()
		waiting = append(waiting, l.takeWaiting()...)
		waiting = append(waiting, l.gather(len(waiting))...)
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

// forgetLostFlows lets go of a connection to the switch that has ended, so that the round makes another. Each round
// asks: select takes any of what is ready, and where much is, rounds would go on to fail with the one that is lost.
func (l *loop) forgetLostFlows() {
	select {
	case <-l.flowsLost():
		l.log.Info("OpenFlow connection lost", "socket", l.mgmt)
		l.flows = nil
	default:
	}
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

// gather takes the requests of those who will send one within moments, if there are have already. What a round costs
// here and in ovs-vswitchd depends on the pods that are there, hardly on how many are new.
func (l *loop) gather(have int) (out []request) {
	last := time.After(gatherMost)
	for have > 0 && l.making.Load() > 0 {
		select {
		case r := <-l.requests:
			out = append(out, r)
		case <-last:
			return out
		}
	}
	return append(out, l.takeWaiting()...)
}

func (l *loop) backOff() time.Duration {
	if l.flows == nil || !l.db.Connected() {
		return retryFirst
	}
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
	conflict := l.advice.explain(l.takeOwn(snapshot), snapshot)
	waiting = overtaken(waiting, l.own, conflict)
	d, o := l.observeAndApply(ctx, snapshot, waiting)
	l.publish(snapshot, d, conflict, o)
	err := errors.Join(o.pods, o.host, o.peers)
	l.metrics.round(time.Since(start), err)
	return err
}

// overtaken answers the ADDs that took an address before the Node changed, and
// returns the other requests: nobody routes that address to this node any more.
func overtaken(waiting []request, own inputs.Node, conflict error) []request {
	return slices.DeleteFunc(waiting, func(r request) bool {
		if r.add == nil || r.runs || r.add.Bridged {
			return false
		}
		why := conflict
		if why == nil && strays(own, []api.Attachment{*r.add}) != nil {
			why = fmt.Errorf("the podCIDRs of node %s have become %v while the pod got an address", own.Name, own.PodCIDRs)
		}
		if why != nil {
			r.done <- why
		}
		return why != nil
	})
}

func (l *loop) observeAndApply(ctx context.Context, snapshot *inputs.Snapshot, waiting []request) (Desired, outcome) {
	if err := l.findTransport(); err != nil {
		return Desired{}, l.failed(waiting, err)
	}
	obs, err := l.db.Observe(l.cfg.OVSBridge)
	if err == nil && obs.DatapathLost {
		err = fmt.Errorf("somebody has deleted the datapath of bridge %s (\"ovs-dpctl del-dp\"), and ovs-vswitchd can't make it "+
			"anew while it runs: restart ovs-vswitchd", l.cfg.OVSBridge)
	}
	if err != nil {
		o := l.failed(waiting, err)
		o.away = true
		return Desired{}, o
	}
	l.uplinkPort = obs.Uplink.OFPort
	l.full = l.full || l.wait.restored(obs.RestoreWait)
	in := Inputs{Config: l.cfg, Own: l.own, Nodes: l.nodes, Transport: l.transport, Needed: l.needed,
		Uplink: l.uplink.underlay(), NodeAddrs: l.nodeAddrs, Pools: poolRanges(snapshot.IPPools),
		Attachments: l.attachments(obs.Pods, waiting)}
	if len(in.Own.PodCIDRs) == 0 {
		in.Own.PodCIDRs = heldCIDRs(in.Own, in.Nodes, in.Attachments)
	}
	d := Desire(in)
	return d, l.apply(ctx, d, waiting)
}

// attachments are those on record, those that were until somebody else removed
// them, and what the waiting requests make of them.
func (l *loop) attachments(now []ovsdb.PodPort, waiting []request) []api.Attachment {
	all, lost := l.seen.merge(now)
	for _, a := range lost {
		l.log.Info("somebody removed the port of a pod, or its record, from OVSDB: it is put back",
			"pod", a.Pod(), "interface", a.HostIf)
	}
	for _, r := range waiting { // a DEL that fails finds it on record again
		if r.add == nil {
			l.seen.forget(link.HostName(r.del.containerID, r.del.ifName))
		}
	}
	return withRequests(all, waiting)
}

// takeOwn follows the node's own Node. One that can't be used (it is gone, or
// another node has the same podCIDR) leaves the last good one in force: pods
// that run keep their addresses, and only new ones are refused. The other nodes
// are followed as long as there is any Node: none at all is an input that was
// lost (a directory that is not mounted), and no reason to cut their pods off.
func (l *loop) takeOwn(s *inputs.Snapshot) error {
	if s.Unread {
		return fmt.Errorf("waiting for %s, which has told no Nodes yet: %w", l.source, cmp.Or(s.Trouble, errNoAnswer))
	}
	if len(s.Nodes) > 0 {
		l.nodes = s.Nodes
	}
	own, err := checkOwn(l.nodeName, s.Nodes, l.source.String())
	if err == nil { // at the start the transport is not known yet
		err = takesFromNode(own, l.transport, l.needed)
	}
	if err != nil {
		l.bridgeOnly(s)
		return err
	}
	if l.own.Name != "" && !slices.Equal(l.own.PodCIDRs, own.PodCIDRs) {
		l.log.Info("podCIDRs of this node changed", "from", l.own.PodCIDRs, "to", own.PodCIDRs)
	}
	if !slices.Equal(l.own.Addresses, own.Addresses) {
		l.looked = time.Time{}
	}
	l.own = own
	return nil
}

var errNoAnswer = errors.New("no answer until now")

// findTransport looks again at the interface of the node's address. A node
// whose address is away for a moment (DHCP, a flapping link) keeps the last.
func (l *loop) findTransport() error {
	if !l.full && time.Since(l.looked) < transportEvery {
		return nil
	}
	t, err := link.FindTransport(l.own.Addresses, l.uplink.holder(l.cfg.TransportInterface), l.cfg.TransportInterfaceCIDRs,
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
	if l.full || l.needed == nil { // there may be many routes: not at each ADD
		l.needed, err = link.FindNeeded(l.cfg.HostGateway)
		if err == nil && l.cfg.EnableBridgingMode {
			err = l.findForBridged()
		}
	}
	if err == nil {
		l.looked = time.Now()
	}
	return err
}

// findForBridged looks for what bridged pods may meet on the node.
func (l *loop) findForBridged() (err error) {
	l.vlanDevices = nil // in mode steer they and pods share a VLAN
	if !l.uplink.steers() {
		if l.vlanDevices, err = link.VLANDevices(l.transport.Name, l.nic()); err != nil {
			return err
		}
	}
	l.nodeAddrs, err = link.NodeAddrs(l.cfg.HostGateway)
	return err
}

// withRequests is what is attached now, with the waiting requests carried out.
func withRequests(now []api.Attachment, waiting []request) []api.Attachment {
	byKey := map[key]api.Attachment{}
	for _, a := range now {
		byKey[keyOf(a)] = a
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

// failed is the outcome of a round in which nothing could be applied.
func (l *loop) failed(waiting []request, err error) outcome {
	l.answer(waiting, err)
	return outcome{pods: err}
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
			err = fmt.Errorf("ovs-vswitchd gave the port %s no number: %s", r.add.HostIf,
				cmp.Or(ports[r.add.HostIf].Error, "it does not say why; does it hang?"))
		}
		if err == nil && r.add != nil {
			l.seen.note(*r.add)
		}
		r.done <- err
	}
}
