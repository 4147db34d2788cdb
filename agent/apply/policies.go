package apply

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/fairlead-cni/fairlead/agent/policies"
	"github.com/fairlead-cni/fairlead/datapath/vswitchd"
	"github.com/fairlead-cni/fairlead/openflow/tables"
	"github.com/fairlead-cni/fairlead/policy"
)

// errNoPolicies keeps a switch closed that has no flows of policies, as after a restart of ovs-vswitchd, as long as it
// is not known which there shall be.
var errNoPolicies = errors.New("the cluster's NetworkPolicies are not known yet, and without them pods would be open: " +
	"the agent waits until the API server has answered")

// Waits is why no pod can be added yet; nil if one can.
func (f *Flows) Waits() error {
	if f.policies.rules == nil || f.policies.rules.Read() {
		return nil
	}
	return errNoPolicies
}

// setPolicies tells the switch which flows policies come to: all, on a connection that is fresh.
func (f *Flows) setPolicies(ctx context.Context, r *Round, view tables.View, fresh bool) error {
	if f.policies.rules == nil {
		if fresh {
			f.sw.SetPolicies(nil, true)
		}
		return nil
	}
	first := !f.policies.rules.Known()
	changed := f.policies.rules.Update(place(r, view), time.Now())
	f.report()
	if first {
		there, err := f.sw.PolicyFlows(ctx)
		switch {
		case err != nil:
			return err
		case f.policies.rules.Known():
			f.policies.rules.Adopt(there, time.Now())
		case len(there) == 0:
			return errNoPolicies
		default:
			return nil
		}
	}
	if fresh || first {
		f.sw.SetPolicies(f.policies.rules.Units(), true)
	} else {
		f.sw.SetPolicies(changed, false)
	}
	f.policies.changed = f.policies.changed || fresh || first || len(changed) > 0
	return nil
}

// report logs what of policies is not enforced as it says.
func (f *Flows) report() {
	now := f.policies.rules.Problems()
	for _, p := range now {
		if !slices.Contains(f.policies.problems, p) {
			f.log.Info("a policy is not enforced as it says", "problem", p)
		}
	}
	f.policies.problems = now
}

// place is where pods and node are.
func place(r *Round, view tables.View) *policies.Place {
	p := &policies.Place{Services: len(r.Want.ServiceCIDRs) > 0}
	for i, a := range r.Want.OVSDB.Pods { // in the order of the view's
		p.Ports = append(p.Ports, policies.Port{Pod: policy.PodKey{Namespace: a.PodNamespace, Name: a.PodName},
			HostIf: a.HostIf, At: view.Pods[i]})
	}
	p.Node = slices.Clone(view.NodeAddrs)
	for _, a := range view.Gateway.Addrs {
		// Where the node has another address, only what it masquerades has the gateway's.
		if !slices.ContainsFunc(r.Want.Gateway.Sources, func(s netip.Addr) bool { return s.Is4() == a.Is4() }) {
			p.Node = append(p.Node, a)
		}
	}
	return p
}

// SyncPolicies has the switch follow objects of policies that have changed, and nothing else. It is not done if a whole
// round is needed: after an error, and for the first of all.
func (f *Flows) SyncPolicies(ctx context.Context) (done bool, err error) {
	switch {
	case f.policies.rules == nil:
		return true, nil
	case f.sw == nil:
		return false, ErrNoSwitch
	case !f.policies.rules.Known():
		return false, nil
	}
	changed := f.policies.rules.Update(nil, time.Now())
	f.report()
	if len(changed) == 0 {
		return true, nil
	}
	f.sw.SetPolicies(changed, false)
	f.policies.changed = true
	if _, err := f.sw.SyncUnits(ctx); err != nil {
		return false, err
	}
	f.cut(ctx)
	return true, nil
}

// cut ends the connections that the rules forbid now. All others go on.
func (f *Flows) cut(ctx context.Context) {
	if !f.policies.changed {
		return
	}
	f.policies.changed = false
	if err := f.end(ctx); err != nil {
		f.policies.changed = true // the next round tries again
		f.log.Error(err, "connections that policies forbid may go on")
	}
}

// end has the switch drop the packets of connections that the rules forbid, and conntrack forget them.
func (f *Flows) end(ctx context.Context) error {
	now, forbidden := time.Now(), map[uint16][]vswitchd.Connection{}
	for _, zone := range f.policies.rules.Zones() {
		all, err := vswitchd.Connections(ctx, f.runDir, f.datapath, zone)
		if err != nil {
			return err
		}
		for _, c := range all {
			if f.policies.rules.End(c, now) {
				forbidden[zone] = append(forbidden[zone], c)
			}
		}
	}
	if len(forbidden) == 0 {
		return nil
	}
	f.sw.SetPolicies(f.policies.rules.Changed(), false)
	if _, err := f.sw.SyncUnits(ctx); err != nil {
		return err
	}
	for zone, all := range forbidden {
		for _, c := range all {
			if err := f.sw.Flush(ctx, zone, c.Protocol, c.From, c.To); err != nil {
				return err
			}
			f.log.Info("ended a connection that policies forbid", "protocol", policy.Protocol(c.Protocol).String(),
				"from", c.From.String(), "to", c.To.String())
		}
	}
	return nil
}
