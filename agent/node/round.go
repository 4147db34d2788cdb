package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fairlead-cni/fairlead/agent/apply"
	"github.com/fairlead-cni/fairlead/agent/desired"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

// round is one pass over the node.
type round struct {
	apply.Round
	snapshot *inputs.Snapshot
	// conflict says why no routed pod may be added, although running ones are served.
	conflict error
	waiting  []request
	// computed: Want is the desired state, and not the zero value of a round that did not get that far.
	computed bool
	outcome
}

// outcome is what went wrong in a round, by what it affects.
type outcome struct {
	pods  error
	host  error
	peers error
	// ovsDown: Open vSwitch does not run, or can't do anything.
	ovsDown bool
}

func (o outcome) err() error { return errors.Join(o.pods, o.host, o.peers) }

// round brings the node to what the inputs and the waiting requests want, and answers the requests.
func (n *Node) round(ctx context.Context, waiting []request) error {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	start := time.Now()
	r := &round{snapshot: n.Source.Snapshot()}
	r.conflict = n.Advisor.Explain(n.updateOwn(r.snapshot), r.snapshot)
	r.waiting = refuseEarly(refuseOutdated(waiting, n.own, r.conflict), n.steps.flows.Waits())
	if err := n.observe(r); err != nil {
		r.pods = err
		n.answer(r.waiting, r.Observed, err)
	} else {
		r.Want, r.computed = desired.Compute(n.inputs(r)), true
		n.kernel.routes.Store(&r.Want.Routes.Routes) // before any is deleted
		n.apply(ctx, r)
	}
	n.publish(r)
	n.Metrics.Loop.Round(time.Since(start), r.err())
	return r.err()
}

// observe looks at the node's interfaces and at OVSDB.
func (n *Node) observe(r *round) (err error) {
	if err := n.links.find(n, n.progress.verify); err != nil {
		return err
	}
	r.Observed, err = n.db.Observe(n.Config.OVSBridge)
	if err == nil && r.Observed.DatapathLost {
		err = fmt.Errorf("the datapath of bridge %s was deleted (\"ovs-dpctl del-dp\"), and ovs-vswitchd cannot recreate it "+
			"while it runs: restart ovs-vswitchd", n.Config.OVSBridge)
	}
	if err != nil {
		r.ovsDown = true
		return err
	}
	n.progress.uplinkPort = r.Observed.Uplink.OFPort
	n.progress.verify = n.steps.needsVerify(r.Observed) || n.progress.verify
	return nil
}

// inputs are all that the desired state depends on.
func (n *Node) inputs(r *round) desired.Inputs {
	in := desired.Inputs{Config: n.Config, Own: n.own, Nodes: n.nodes, Transport: n.links.transport,
		Needed: n.links.needed, Uplink: n.Uplink.Underlay(), NodeAddrs: n.links.nodeAddrs,
		Pools: desired.PoolRanges(r.snapshot.IPPools), ServiceCIDRs: r.snapshot.ServiceCIDRs,
		Attachments: n.attachments(r.Observed.Pods, r.waiting)}
	if len(in.Own.PodCIDRs) == 0 {
		in.Own.PodCIDRs = desired.HeldCIDRs(in.Own, in.Nodes, in.Attachments)
	}
	return in
}

// attachments are those on record and those whose record was deleted, with the waiting requests carried out.
func (n *Node) attachments(now []ovsdb.PodPort, waiting []request) []api.Attachment {
	all, lost := n.Recorded.Merge(now)
	for _, a := range lost {
		n.Log.Info("restoring a pod's port or record, which was deleted from OVSDB", "pod", a.Pod(), "interface", a.HostIf)
	}
	_, released := ports(waiting)
	for _, host := range released { // if the DEL fails, its record is found again
		n.Recorded.Forget(host)
	}
	return withRequests(all, waiting)
}

// apply calls each applier. One that fails does not stop those that do not depend on it: as much as possible works. The
// requests are answered as soon as what pods depend on is in place.
func (n *Node) apply(ctx context.Context, r *round) {
	r.Verify, r.Settled = n.progress.verify, n.progress.settled && n.steps.flows.Connected()
	r.Added, r.Removed = ports(r.waiting)
	n.progress.settled = false
	goOn := n.applyGroup(ctx, r, n.steps.pods)
	n.answer(r.waiting, r.Observed, r.pods)
	n.progress.settled = r.pods == nil
	if goOn {
		n.applyGroup(ctx, r, n.steps.host)
		n.progress.verify = n.progress.verify && r.err() != nil
	}
}

// applyGroup calls appliers in order, and returns false if an error stops the round.
func (n *Node) applyGroup(ctx context.Context, r *round, group []step) (goOn bool) {
	for _, s := range group {
		changes, err := s.Apply(ctx, &r.Round)
		n.report(s.Name(), changes)
		n.progress.degraded[s.Name()] = changes.Degraded
		if err == nil {
			continue
		}
		r.add(s.affects, err)
		if s.affects == affectsBridged {
			r.waiting = refuseBridged(r.waiting, err)
			r.Added, r.Removed = ports(r.waiting)
		}
		if errors.Is(err, apply.ErrNoSwitch) {
			r.ovsDown = true
			return false // the gateway is down with it, and without it the rest is of no use
		}
		if s.stops != stopsNothing {
			return s.stops == stopsGroup
		}
	}
	return true
}

func (o *outcome) add(h impact, err error) {
	switch h {
	case affectsPods:
		o.pods = errors.Join(o.pods, err)
	case affectsHost:
		o.host = errors.Join(o.host, err)
	default:
		o.peers = errors.Join(o.peers, err)
	}
}

// followed updates the switch for changed objects of one kind (Services or policies), and reports whether that was all
// there was to do.
func (n *Node) followed(ctx context.Context, what string, sync func(context.Context) (bool, error)) bool {
	if !n.progress.settled || n.progress.verify {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	done, err := sync(ctx)
	if err != nil {
		n.Log.Error(err, "applying single changes; comparing everything again", "kind", what)
	}
	return done
}

// endFound ends connections that were found in parallel to the rounds, and reports whether a round has something to
// report about it.
func (n *Node) endFound(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	return n.steps.flows.EndFound(ctx)
}
