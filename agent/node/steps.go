package node

import (
	"context"
	"slices"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/agent/apply"
	"github.com/fairlead-cni/fairlead/agent/signal"
	"github.com/fairlead-cni/fairlead/agent/status"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
	"github.com/fairlead-cni/fairlead/datapath/uplink/steer"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

// impact is the effect of an applier's error on the node.
type impact int

const (
	affectsPods    impact = iota // no pod can be added
	affectsBridged               // no bridged pod can be added
	affectsHost                  // pods do not reach the node or the outside
	affectsPeers                 // pods of other nodes are not reached, or not from this node itself
)

// stop is how much of a round is skipped after an applier's error, because it depends on that applier.
type stop int

const (
	stopsNothing stop = iota
	stopsGroup        // the rest of its group
	stopsRound        // all that follows
)

// step is one applier in a round.
type step struct {
	apply.Applier
	affects impact
	stops   stop
}

// steps are all appliers, in two groups: those that pods depend on, and, after the requests are answered, the rest.
type steps struct {
	pods, host []step
	flows      flowSwitch
	finished   signal.Signal // an applier has ended work in parallel to the rounds
	closers    []func()
}

// newSteps returns all appliers in their order. An applier that depends on earlier ones is skipped after an error of
// these.
func newSteps(db *ovsdb.DB, cfg api.AgentConfig, name string, source inputs.Source, sync func([]steer.Entry) error,
	m *status.Metrics, log logr.Logger) (
	steps, *apply.RestoreWait) {
	flows := apply.NewFlows(db, cfg, name, source, &m.Loop, log)
	wait := apply.NewRestoreWait(db, cfg, flows.Unread, m.Health.RestoreWaitArmed, log)
	rules, routes, gateway := apply.NewIPTables(), &apply.Routes{}, &apply.Gateway{}
	return steps{
		pods: []step{
			{apply.NewOVSDB(db, cfg.OVSRunDir), affectsPods, stopsRound},
			{apply.NewTunnel(db), affectsPeers, stopsNothing},
			{apply.NewSteer(sync), affectsBridged, stopsNothing},
			{routes.Ahead(gateway), affectsPeers, stopsNothing},
			{flows, affectsPods, stopsGroup},
			{wait, affectsPods, stopsGroup},
			{apply.NewStale(db), affectsPods, stopsGroup},
		},
		// Iptables rules come before direct routes: a packet that takes such a route before its range is exempt from
		// masquerading gives its whole connection another source.
		host: []step{
			{gateway, affectsHost, stopsGroup},
			{&apply.Forwarding{}, affectsHost, stopsGroup},
			{&apply.Veths{}, affectsHost, stopsGroup},
			{rules, affectsHost, stopsNothing},
			{routes, affectsPeers, stopsNothing},
		},
		flows: flows, finished: rules.Finished, closers: []func(){flows.Stop, rules.Close},
	}, wait
}

func (s steps) close() {
	for _, c := range s.closers {
		c()
	}
}

// watchers are the appliers that may need a round.
func (s steps) watchers() (out []apply.Watcher) {
	for _, group := range [][]step{s.pods, s.host} {
		for _, p := range group {
			if w, ok := p.Applier.(apply.Watcher); ok {
				out = append(out, w)
			}
		}
	}
	return out
}

// due asks all of them: one that needs a round must not hide another.
func (s steps) due() (due bool) {
	for _, w := range s.watchers() {
		due = w.Due() || due
	}
	return due
}

func (s steps) needsVerify(obs ovsdb.Observed) (due bool) {
	for _, w := range s.watchers() {
		due = w.NeedsVerify(obs) || due
	}
	return due
}

func (s steps) inPlace(ctx context.Context, obs ovsdb.Observed) bool {
	for _, w := range slices.Backward(s.watchers()) { // the OVSDB applier, the first, has most to compare
		if !w.InPlace(ctx, obs) {
			return false
		}
	}
	return true
}
