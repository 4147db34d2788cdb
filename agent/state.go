package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/link"
	"github.com/fairlead-cni/fairlead/datapath/route"
	"github.com/fairlead-cni/fairlead/kube/inputs"
	"github.com/fairlead-cni/fairlead/openflow"
)

// state is what CNI requests and health checks may know of the loop. It is
// replaced, never changed.
type state struct {
	podCIDRs []netip.Prefix
	podMTU   int
	// bridgedMTU is the MTU of bridged pods. nic is the interface that the
	// underlay is asked on, noUplink says why it is not there for bridged pods,
	// and vlanDevices are its VLAN sub-interfaces, by VLAN.
	bridgedMTU  int
	nic         string
	noUplink    error
	vlanDevices map[uint16]string
	// peers, transport, overhead (in bytes), flows and pods are what was computed last, for
	// who asks what the node should look like.
	peers     []Peer
	transport link.Transport
	overhead  int
	flows     []openflow.Flow
	pods      int
	// addRefused says why no routed pod may be added, though the rest works.
	addRefused error
	// away says what is wrong with Open vSwitch when it can do nothing.
	away error
	// notReady says what does not work. nil means that the node serves pods.
	notReady error
	// degraded says what does not work though pods are served.
	degraded error
	// runtime is the node's container runtime, as inputs.Node has it.
	runtime  string
	snapshot *inputs.Snapshot
}

// mtuOf is the MTU of a's interface if it is made now.
func (s *state) mtuOf(a api.Attachment) int {
	if a.Bridged {
		return s.bridgedMTU
	}
	return s.podMTU
}

// publish makes the outcome of a round known to CNI requests and health checks.
func (l *loop) publish(snapshot *inputs.Snapshot, d Desired, conflict error, o outcome) {
	pods := strays(l.own, d.OVSDB.Pods)
	s := &state{podCIDRs: l.own.PodCIDRs, podMTU: d.PodMTU, addRefused: conflict, snapshot: snapshot,
		runtime: l.own.Runtime, bridgedMTU: underlayMTU(l.cfg, l.transport.MTU), nic: l.nic(), vlanDevices: l.vlanDevices,
		notReady: errors.Join(o.pods, o.host),
		degraded: errors.Join(o.peers, strayed(l.own, pods), otherMTU(d, l.otherMTU), snapshot.Trouble)}
	if l.cfg.EnableBridgingMode { // bridged pods need no podCIDR
		s.noUplink = l.noUplink()
		s.degraded = errors.Join(conflict, s.noUplink, s.degraded)
	} else {
		s.notReady = errors.Join(conflict, s.notReady)
	}
	if o.away {
		s.away = o.pods
	}
	before := l.state.Load()
	if d.PodMTU == 0 { // nothing was computed: what is known of the rest stays
		s.podMTU, s.degraded = before.podMTU, before.degraded
		s.peers, s.transport, s.overhead = before.peers, before.transport, before.overhead
		s.flows, s.pods = before.flows, before.pods
	} else {
		s.peers, s.transport, s.overhead = d.Peers, l.transport, overhead(l.cfg, endpoint(l.transport, l.own))
		s.flows, s.pods = l.wantFlows, len(d.OVSDB.Pods)
		l.tellStrays(pods)
		l.tellProblems(d.Problems)
		l.tellRouted(byWay(d.Peers, LeftToRouters))
		l.metrics.desired(d)
	}
	l.state.Store(s)
	l.metrics.published(s)
	l.tellChange("not ready", before.notReady, s.notReady)
	l.tellChange("ready, but something does not work", before.degraded, s.degraded)
	if s.notReady == nil {
		l.once()
	}
}

// tellStrays names each pod that a change of the podCIDR left behind, when they
// become others.
func (l *loop) tellStrays(pods []string) {
	l.metrics.strays.Set(float64(len(pods)))
	message := ""
	if err := strayed(l.own, pods); err != nil {
		message = err.Error()
	}
	l.advice.tell(reasonStrays, message)
	if len(pods) > 0 && !slices.Equal(pods, l.strays) {
		l.log.Info("pods have addresses of a podCIDR that the node had before", "podCIDRs", l.own.PodCIDRs, "pods", pods)
	}
	l.strays = pods
}

func (l *loop) tellProblems(problems []string) {
	for _, p := range problems {
		if !slices.Contains(l.problems, p) {
			l.log.Info("a node is refused", "problem", p)
		}
	}
	for _, p := range l.problems {
		if !slices.Contains(problems, p) {
			l.log.Info("a node is no longer refused", "problem", p)
		}
	}
	l.problems = problems
}

// tellRouted says which podCIDRs the underlay's routers must know, when that
// changes. It is how noEncap mode works, and no error.
func (l *loop) tellRouted(podCIDRs []netip.Prefix) {
	ranges := route.Aggregate(podCIDRs)
	now := make([]string, 0, len(ranges))
	for _, p := range ranges {
		now = append(now, p.String())
	}
	switch {
	case slices.Equal(now, l.routed):
	case len(now) == 0:
		l.log.Info("no podCIDR is left to the underlay's routers any more")
	default:
		l.log.Info("these podCIDRs belong to nodes in other subnets, and there is no tunnel: the underlay's routers must "+
			"know the way to them", "podCIDRs", someOf(now))
	}
	l.routed = now
}

// otherMTU says which pods still have another MTU than pods get now, as after a
// change of the traffic mode; nil when none has. hosts are their host ends, and
// may be of pods that are gone.
func otherMTU(d Desired, hosts []string) error {
	var pods []string
	for _, a := range d.OVSDB.Pods {
		if slices.Contains(hosts, a.HostIf) {
			pods = append(pods, a.Pod())
		}
	}
	if len(pods) == 0 {
		return nil
	}
	slices.Sort(pods)
	return fmt.Errorf("pods have another MTU than %d, which pods get now, because the traffic mode, defaultMTU or the "+
		"underlay has changed: large packets from or to them may be lost. Delete them, so that they are made anew (%s)",
		d.PodMTU, someOf(pods))
}

// tellChange logs an error when it appears, changes or goes, and not in every
// round.
func (l *loop) tellChange(what string, before, now error) {
	switch {
	case now == nil && before != nil:
		l.log.Info("over: "+what, "was", before.Error())
	case now != nil && (before == nil || before.Error() != now.Error()):
		l.log.Error(now, what)
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

// ready returns nil when a pod could be added now.
func (l *loop) ready() error {
	if err := l.state.Load().notReady; err != nil {
		return err
	}
	if !l.serving.Load() {
		return errors.New("the node is as it should be; CNI requests are not answered yet")
	}
	return nil
}
