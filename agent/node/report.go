package node

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/agent/apply"
	"github.com/fairlead-cni/fairlead/agent/desired"
	"github.com/fairlead-cni/fairlead/agent/events"
	"github.com/fairlead-cni/fairlead/agent/status"
	"github.com/fairlead-cni/fairlead/datapath/route"
	"github.com/fairlead-cni/fairlead/diagnose/report"
)

// report logs and counts what an applier did.
func (n *Node) report(name string, c apply.Changes) {
	if count := len(c.Wanted) + len(c.Repaired); count > 0 {
		n.Metrics.Loop.HostChanges.WithLabelValues(name).Add(float64(count))
	}
	for _, change := range c.Wanted {
		n.Log.Info("changed "+name, "change", change)
	}
	if len(c.Repaired) > 0 {
		n.Log.Info("reverted external change", "kind", name, "changes", strings.Join(c.Repaired, "; "))
		n.Metrics.Loop.Drift.WithLabelValues(name).Add(float64(len(c.Repaired)))
	}
}

// lastLogged is what was logged last about lasting states, which are logged when they change, and not in every round.
type lastLogged struct {
	problems []string
	outside  []string // pods outside of the podCIDRs
	routers  []string // podCIDRs left to the underlay's routers
}

// logChange logs an error when it appears, changes or is resolved.
func (n *Node) logChange(what string, before, now error) {
	switch {
	case now == nil && before != nil:
		n.Log.Info("resolved: "+what, "reason", before.Error())
	case now != nil && (before == nil || before.Error() != now.Error()):
		n.Log.Error(now, what)
	}
}

// reportOutside names all pods that a change of the podCIDR left behind, when that set changes.
func (n *Node) reportOutside(pods []string) {
	n.Metrics.Pods.Outside.Set(float64(len(pods)))
	message := ""
	if err := desired.OutsideError(n.own, pods); err != nil {
		message = err.Error()
	}
	n.Advisor.Report(events.ReasonOutside, message)
	if len(pods) > 0 && !slices.Equal(pods, n.lastLogged.outside) {
		n.Log.Info("pods have addresses of a podCIDR that the node had before", "podCIDRs", n.own.PodCIDRs, "pods", pods)
	}
	n.lastLogged.outside = pods
}

// reportTunnel reports that pods of other nodes are not reached.
func (n *Node) reportTunnel(err error) {
	n.Metrics.Health.TunnelUnusable.Set(status.Flag(err != nil))
	at := n.links.transport.Name
	moving := n.Config.EnableBridgingMode && (n.Uplink.Ready() != nil || n.Uplink.Holder(at) != at)
	n.Advisor.Report(events.ReasonTunnel, tunnelEvent(err, moving))
}

// tunnelEvent is the Event about a tunnel that cannot work; empty: there is none. moving: the uplink moves the node's
// address from Open vSwitch and back, as at each restart of ovs-vswitchd, so the Event must not ask for that.
func tunnelEvent(err error, moving bool) string {
	if err == nil || moving {
		return ""
	}
	return err.Error()
}

func (n *Node) logProblems(problems []string) {
	for _, p := range problems {
		if !slices.Contains(n.lastLogged.problems, p) {
			n.Log.Info("peer refused", "problem", p)
		}
	}
	for _, p := range n.lastLogged.problems {
		if !slices.Contains(problems, p) {
			n.Log.Info("peer no longer refused", "problem", p)
		}
	}
	n.lastLogged.problems = problems
}

// logRouters logs which podCIDRs the underlay's routers must have routes to, when that changes. This is how noEncap
// mode works, not an error.
func (n *Node) logRouters(podCIDRs []netip.Prefix) {
	ranges := route.Aggregate(podCIDRs)
	now := make([]string, 0, len(ranges))
	for _, p := range ranges {
		now = append(now, p.String())
	}
	switch {
	case slices.Equal(now, n.lastLogged.routers):
	case len(now) == 0:
		n.Log.Info("no podCIDRs are left to the underlay's routers any more")
	default:
		n.Log.Info("these podCIDRs belong to nodes in other subnets, and there is no tunnel: the underlay's routers must "+
			"have routes to them", "podCIDRs", report.Some(now))
	}
	n.lastLogged.routers = now
}

// noUplink says why bridged pods can't be put onto the underlay; nil when they can.
func (n *Node) noUplink(port uint32) error {
	err := n.Uplink.Ready()
	if err == nil && port == 0 {
		err = fmt.Errorf("Open vSwitch has not joined %s and the uplink's bridge yet", n.Config.OVSBridge)
	}
	if err == nil {
		return nil
	}
	return fmt.Errorf("node %s puts no bridged pods onto the underlay: %w", n.NodeName, err)
}
