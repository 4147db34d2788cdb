package apply

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/agent/policies"
	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/openflow/tables"
	"github.com/fairlead-cni/fairlead/policy"
)

// What is wrong as long as the policies are not known.
var (
	// errNoPolicies keeps a switch without policy flows closed, as after a restart of ovs-vswitchd.
	errNoPolicies = errors.New("the cluster's NetworkPolicies are not known yet, and without them pods would be open: " +
		"the agent waits until the API server has answered (policyStart)")
	errClosed = errors.New("the cluster's NetworkPolicies are not known, as the API server has not answered since the agent's " +
		"start: only their own node reaches pods that Open vSwitch had no flows for (policyStart)")
)

// Waits returns why no pod can be added yet; nil if one can.
func (f *Flows) Waits() error {
	if f.policies.rules == nil || f.policies.rules.Read() {
		return nil
	}
	return f.policies.waits(time.Now())
}

func (e *policyState) waits(now time.Time) error {
	if now.Before(e.waitUntil) {
		return errNoPolicies
	}
	return nil
}

// unknown returns what does not work because policies are not known; nil if they are.
func (e *policyState) unknown() error {
	if e.rules == nil || e.rules.Known() {
		return nil
	}
	return cmp.Or(e.waits(time.Now()), errClosed)
}

// setPolicies gives the switch the flows of policies: all of them, unless it has got all before. What fails is left to
// a later round.
func (f *Flows) setPolicies(ctx context.Context, r *Round, view tables.View) error {
	if f.policies.rules == nil {
		f.sw.SetPolicies(nil, true)
		return nil
	}
	changed := f.update(ctx, nodeState(r, view), r.Verify)
	if !f.policies.adopted {
		f.sw.Resync() // there has flows that belong to no unit
		there, err := f.sw.PodFlows(ctx)
		if err != nil {
			return err
		}
		if !f.policies.rules.Known() {
			return f.keepEnforced(there)
		}
		f.policies.rules.Adopt(there, time.Now())
		f.policies.adopted, f.policies.allSent = true, false
	}
	all := !f.policies.allSent
	if all {
		changed = f.policies.rules.Units()
	}
	f.sw.SetPolicies(changed, all)
	f.policies.allSent = true
	f.policies.tightened.now = f.policies.rules.Tightened() || f.policies.tightened.now || all
	return nil
}

// update takes over the changes. verify: compare the limit of denied packets as well.
func (f *Flows) update(ctx context.Context, to *policies.NodeState, verify bool) map[uint32]openflow.Unit {
	known := f.policies.rules.Known()
	changed := f.policies.rules.Update(to, time.Now())
	for id, unit := range f.policies.rules.SetReceiving(f.ensureTap(ctx, verify)) {
		changed[id] = unit
	}
	f.report()
	if known && len(changed) > 0 && f.policies.since.IsZero() {
		f.policies.since = f.policies.rules.Since()
	}
	return changed
}

// policiesSynced is called when the switch enforces the policies; it records how long that took, and what the flows
// have counted.
func (f *Flows) policiesSynced() {
	if f.policies.rules == nil {
		return
	}
	m := &f.metrics.Policies
	if !f.policies.since.IsZero() {
		m.Enforced.Observe(time.Since(f.policies.since).Seconds())
		f.policies.since = time.Time{}
	}
	if f.verdicts == nil { // not listed since
		return
	}
	counts := f.policies.rules.Count(f.verdicts)
	f.verdicts = nil
	for c, n := range counts {
		m.Count(c.Denies, n, c.Labels()...)
	}
	for c := range f.policies.counted {
		if _, there := counts[c]; !there {
			m.Forget(c.Denies, c.Labels()...)
		}
	}
	f.policies.counted = counts
}

// keepEnforced makes the switch go on to enforce the flows in there, and serve no other pod except to its node, while
// policies are not known.
func (f *Flows) keepEnforced(there []openflow.Flow) error {
	enforces := slices.ContainsFunc(there, func(f openflow.Flow) bool { return f.Kind.OfPolicies() })
	if err := f.policies.waits(time.Now()); err != nil && !enforces {
		return err
	}
	f.sw.SetPolicies(f.policies.rules.Unknown(there), true)
	f.policies.tightened.now = f.policies.rules.Tightened() || f.policies.tightened.now
	return nil
}

// report logs which parts of policies are not enforced as written.
func (f *Flows) report() {
	now := f.policies.rules.Problems()
	for _, p := range now {
		if !slices.Contains(f.policies.problems, p) {
			f.log.Info("a policy is not enforced as written", "problem", p)
		}
	}
	f.policies.problems = now
}

// nodeState returns the ports of the pods and the addresses of the node.
func nodeState(r *Round, view tables.View) *policies.NodeState {
	p := &policies.NodeState{Services: len(r.Want.ServiceCIDRs) > 0}
	for i, a := range r.Want.OVSDB.Pods { // in the order of the view's
		p.Ports = append(p.Ports, policies.Port{Pod: policy.PodKey{Namespace: a.PodNamespace, Name: a.PodName},
			UID: a.PodUID, HostIf: a.HostIf, At: view.Pods[i]})
	}
	p.Node = slices.Clone(view.NodeAddrs)
	for _, a := range view.Gateway.Addrs {
		// If the node has another address, only packets that it masquerades have the gateway's.
		if !slices.ContainsFunc(r.Want.Gateway.Sources, func(s netip.Addr) bool { return s.Is4() == a.Is4() }) {
			p.Node = append(p.Node, a)
		}
	}
	return p
}

// SyncPolicies updates the switch for changed objects of policies, and nothing else. done is false if a whole round is
// needed: after an error, and the first time.
func (f *Flows) SyncPolicies(ctx context.Context) (done bool, err error) {
	switch {
	case f.policies.rules == nil:
		return true, nil
	case f.sw == nil:
		return false, ErrNoSwitch
	case !f.policies.allSent:
		return false, nil
	}
	changed := f.update(ctx, nil, false)
	f.policies.tightened.now = f.policies.rules.Tightened() || f.policies.tightened.now
	if len(changed) == 0 {
		return true, nil
	}
	f.sw.SetPolicies(changed, false)
	if err := f.syncUnits(ctx); err != nil {
		return false, err
	}
	f.policiesSynced()
	f.scanDenied(ctx)
	return true, nil
}
