package node

import (
	"errors"
	"maps"
	"slices"

	"github.com/fairlead-cni/fairlead/agent/desired"
	"github.com/fairlead-cni/fairlead/agent/status"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/vswitchd"
)

// publish makes the outcome of a round known to CNI requests and health checks. If the round did not compute the
// desired state, what earlier rounds computed stays.
func (n *Node) publish(r *round) {
	before := n.Board.Load()
	s := n.statusOf(r, before)
	if r.computed {
		n.reportTunnel(s.NoTunnel)
		n.reportOutside(desired.OutsidePodCIDRs(n.own, api.OfPods(r.Want.OVSDB.Pods)))
		n.logProblems(r.Want.Problems)
		n.logRouters(desired.ByPath(r.Want.Peers, desired.PathRouters))
		n.Metrics.Desired(r.Want)
	}
	n.Board.Publish(s)
	n.published.Notify()
	n.Metrics.Health.Ready.Set(status.Flag(s.NotReady == nil))
	n.Metrics.Health.Degraded.Set(status.Flag(n.Board.Degraded() != ""))
	n.Metrics.Health.InputProblems.Set(float64(len(r.snapshot.Problems)))
	n.logChange("not ready", before.NotReady, s.NotReady)
	n.logChange("ready, but degraded", before.Degraded, s.Degraded)
	if s.NotReady == nil {
		n.firstRound()
	}
}

func (n *Node) statusOf(r *round, before *status.Status) *status.Status {
	s := *before
	transport := n.links.transport
	s.Snapshot, s.Runtime, s.AddRefused = r.snapshot, n.own.Runtime, r.conflict
	s.PodCIDRs, s.NIC, s.VLANDevices = n.own.PodCIDRs, n.Uplink.NIC(transport.Name), n.links.vlanDevices
	s.BridgedMTU = desired.UnderlayMTU(n.Config, transport.MTU)
	s.OVSStart, s.OVSDown = vswitchd.RunningStartID(n.Config.OVSRunDir), nil
	if r.ovsDown {
		s.OVSDown = r.pods
	}
	if r.computed {
		s.PodMTU = r.Want.PodMTU
		pods := api.OfPods(r.Want.OVSDB.Pods)
		s.Computed = status.Computed{Peers: r.Want.Peers, Transport: transport, Flows: n.steps.flows.Current(),
			Overhead: desired.Overhead(n.Config, desired.Endpoint(transport, n.own)), Pods: len(pods),
			Unanswered: n.steps.flows.Unanswered()}
		s.NoTunnel = desired.NoTunnel(transport, r.Want.Peers, r.Observed)
		outside := desired.OutsideError(n.own, desired.OutsidePodCIDRs(n.own, pods))
		s.Degraded = errors.Join(r.peers, s.NoTunnel, outside, n.degraded(), r.snapshot.Trouble)
	}
	s.NotReady, s.NoUplink = errors.Join(r.pods, r.host), nil
	if !n.Config.EnableBridgingMode {
		s.NotReady = errors.Join(r.conflict, s.NotReady)
		return &s
	}
	s.NoUplink = n.noUplink(n.progress.uplinkPort)
	if r.computed { // bridged pods need no podCIDR
		s.Degraded = errors.Join(r.conflict, s.NoUplink, n.Uplink.Unwritable(), s.Degraded)
	}
	return &s
}

// degraded is what appliers can't repair.
func (n *Node) degraded() (err error) {
	for _, name := range slices.Sorted(maps.Keys(n.progress.degraded)) {
		err = errors.Join(err, n.progress.degraded[name])
	}
	return err
}

// firstRound closes firstOK at the first good round.
func (n *Node) firstRound() {
	select {
	case <-n.firstOK:
	default:
		close(n.firstOK)
	}
}
