package agent

import (
	"context"
	"errors"
	"sync"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"

	"github.com/fairlead-cni/fairlead/agent/addresses"
	"github.com/fairlead-cni/fairlead/agent/attachments"
	"github.com/fairlead-cni/fairlead/agent/desired"
	"github.com/fairlead-cni/fairlead/agent/events"
	"github.com/fairlead-cni/fairlead/agent/node"
	"github.com/fairlead-cni/fairlead/agent/pods"
	"github.com/fairlead-cni/fairlead/agent/reach"
	"github.com/fairlead-cni/fairlead/agent/rundir"
	"github.com/fairlead-cni/fairlead/agent/status"
	"github.com/fairlead-cni/fairlead/agent/uplink"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/cniserver/conflist"
	"github.com/fairlead-cni/fairlead/cniserver/wire"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
	nic "github.com/fairlead-cni/fairlead/datapath/uplink"
	"github.com/fairlead-cni/fairlead/internal/bootid"
	"github.com/fairlead-cni/fairlead/kube"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

// Options are what Run needs in addition to the config file.
type Options struct {
	Config api.AgentConfig
	// Version is the agent's version, for the API server's log.
	Version string
	// NodeName is the name of this node's Node.
	NodeName string
	// Shim is the path of the CNI plugin to install; empty installs none.
	Shim string
	// Intervals are api.DefaultIntervals, except in tests.
	Intervals api.Intervals
	Log       logr.Logger
}

// Run runs the agent. It returns nil when ctx ends, a *desired.PodCIDRError when the node has no usable podCIDR, and
// otherwise what went wrong. Nothing on the node is undone when it returns: the data path of pods and node stays in
// place, and the next agent takes over.
func Run(ctx context.Context, o Options) error {
	unlock, err := rundir.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() {
		unlock()
		uplink.Leave(ctx, nic.DefaultJournal, o.Config, o.Log)
	}()
	last := rundir.LastError{Path: wire.LastErrorPath(o.Config.CNISocket), Log: o.Log}
	err = run(ctx, o, last)
	if err == nil {
		return nil
	}
	last.Write(err)
	if podCIDR := (*desired.PodCIDRError)(nil); errors.As(err, &podCIDR) {
		// The node can't serve pods until this is fixed: the runtime must see that.
		if rerr := conflist.Remove(conflist.DefaultPath); rerr != nil {
			o.Log.Error(rerr, "removing the CNI network configuration")
		}
	}
	return err
}

// parts are the parts of an agent.
type parts struct {
	Options
	client  *kube.Client // nil where inputs come from a directory
	source  inputs.Source
	board   *status.Board
	metrics *status.Metrics
	advisor *events.Advisor
	uplink  *uplink.Uplink
	node    *node.Node
	reach   *reach.Prober
	last    rundir.LastError
}

func newParts(o Options, last rundir.LastError) (*parts, error) {
	client, source, err := newSource(o)
	if err != nil {
		return nil, err
	}
	p := &parts{Options: o, client: client, source: source, last: last, board: status.NewBoard(source.Snapshot()),
		metrics: status.NewMetrics(o.Version),
		advisor: events.NewAdvisor(client, o.NodeName, o.Intervals.Agent, o.Log.WithName("podcidr"))}
	if k, ok := source.(*inputs.Kubernetes); ok {
		p.metrics.AddInputs(k)
	}
	if client != nil {
		p.metrics.AddClient(client)
	}
	p.uplink = uplink.Open(nic.DefaultJournal, o.Config, o.Intervals.Agent, client, p.metrics, o.Log)
	p.node = node.New(node.Parts{Config: o.Config, NodeName: o.NodeName, Source: source, Advisor: p.advisor,
		Uplink: p.uplink, Board: p.board, Intervals: o.Intervals.Agent, Metrics: p.metrics, Log: o.Log})
	p.reach = reach.New(reach.Parts{Config: o.Config, NodeName: o.NodeName, Board: p.board, Metrics: p.metrics,
		Interval: o.Intervals.Agent.Reach, Log: o.Log})
	return p, nil
}

// newSource returns the directory if the config names one, else the API server with its client.
func newSource(o Options) (*kube.Client, inputs.Source, error) {
	log := o.Log.WithName("inputs")
	if o.Config.ManifestsDir != "" {
		d, err := inputs.NewDirectory(o.Config.ManifestsDir, log)
		if err == nil {
			d.Intervals = o.Intervals.Inputs
		}
		return nil, d, err
	}
	client, err := kube.New(o.Config, o.Version)
	if err != nil {
		return nil, nil, err
	}
	k := inputs.NewKubernetes(client, o.NodeName, inputs.LastKnownPath, o.Config.EnableBridgingMode, log)
	k.Intervals = o.Intervals.Inputs
	if o.Config.Services == api.ServicesOVS {
		k.FollowServices()
	}
	if o.Config.NetworkPolicies == api.PoliciesEnforce {
		k.FollowPolicies(inputs.LastPoliciesPath)
	}
	return client, k, nil
}

// run starts all parts that need no Open vSwitch, and then, in order, the rest. The first part to end ends all.
func run(ctx context.Context, o Options, last rundir.LastError) error {
	last.Write(status.ErrStarting) // replaces that of the previous agent
	p, err := newParts(o, last)
	if err != nil {
		// An agent without its inputs ends, but first finishes or undoes an interrupted attach of the uplink.
		uplink.Open(nic.DefaultJournal, o.Config, o.Intervals.Agent, nil, status.NewMetrics(o.Version), o.Log).Resume(ctx)
		return err
	}
	// This comes before anything that needs the network: the node may have none until this is done.
	p.uplink.Resume(ctx)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { p.uplink.RunYield(ctx); return nil })
	g.Go(func() error { return p.source.Run(ctx) })
	g.Go(func() error {
		return status.ServeHTTP(ctx, o.Config, p.board.Ready, p.state, p.reach.Request, p.metrics)
	})
	g.Go(func() error {
		events.NewPolicies(p.source, p.client, o.NodeName, o.Config.NetworkPolicies == api.PoliciesEnforce, o.Intervals.Agent,
			p.metrics, o.Log).Run(ctx)
		return nil
	})
	g.Go(func() error { p.advisor.Run(ctx); return nil })
	if o.Config.Reachability == api.ReachabilityProbe {
		g.Go(func() error { events.NewReach(p.reach.Report, p.client, o.NodeName, o.Log).Run(ctx); return nil })
	}
	g.Go(func() error { return p.reported(ctx, p.start(ctx)) })
	return g.Wait()
}

func (p *parts) state() api.AgentState {
	s := p.board.State(p.Version, p.NodeName, p.Config.EnableBridgingMode)
	s.Reach = p.reach.Report()
	return s
}

// reported writes an Event on the Node about a podCIDR that ends the agent.
func (p *parts) reported(ctx context.Context, err error) error {
	if q := (*desired.PodCIDRError)(nil); errors.As(err, &q) && p.client != nil && ctx.Err() == nil {
		p.advisor.Warn(ctx, events.ReasonPodCIDR, q.Reason)
	}
	return err
}

// start configures the node step by step and serves it until ctx ends.
func (p *parts) start(ctx context.Context) error {
	if err := p.node.WaitPodCIDR(ctx, p.last); err != nil || ctx.Err() != nil {
		return err
	}
	if err := p.node.CheckTransport(); err != nil {
		return err
	}
	db := p.node.ConnectOVSDB(ctx, p.last)
	if db == nil {
		return nil
	}
	defer db.Close()
	p.node.Use(db, p.last)
	if err := p.node.AttachUplink(ctx); err != nil {
		return err
	}
	// The loop outlives ctx: CNI requests that are running when the agent stops are finished, and need it.
	loopCtx, stopLoop := context.WithCancel(context.WithoutCancel(ctx))
	var loops sync.WaitGroup
	loops.Go(func() { p.node.Run(loopCtx) })
	loops.Go(func() { p.node.FollowKernel(loopCtx) })
	loops.Go(func() { p.uplink.Run(loopCtx) })
	err := p.serve(ctx, db)
	stopLoop()
	loops.Wait()
	return err
}

// serve waits for the node to be as desired, then answers CNI requests until ctx ends.
func (p *parts) serve(ctx context.Context, db *ovsdb.DB) error {
	if !p.node.WaitFirstRound(ctx, p.last) {
		return nil
	}
	a, v, err := p.newVerbs(db)
	if err != nil {
		return err
	}
	defer a.Close()
	defer a.Events.Close()
	if err := v.Reconcile(ctx); err != nil {
		// Not fatal: reclaiming is retried.
		p.Log.Error(err, "some of what deleted pods left behind could not be reclaimed yet")
	}
	p.last.Clear()
	beside, stop := context.WithCancel(ctx)
	var workers sync.WaitGroup
	workers.Go(func() { v.RunReconciler(beside) })
	workers.Go(func() { v.Registry.Reaper.Run(beside, &v.Registry.Locks, v.Log) })
	if p.Config.EnableBridgingMode && p.Config.IPAM.ConflictProbeTimeout > 0 {
		workers.Go(func() { a.RunProber(beside) })
	}
	workers.Go(func() { p.reach.Run(beside, v) })
	err = v.Serve(ctx, p.Shim)
	stop()
	workers.Wait()
	return err
}

// newVerbs makes what answers CNI requests.
func (p *parts) newVerbs(db *ovsdb.DB) (*addresses.Addresses, *pods.Pods, error) {
	id, err := bootid.Read()
	if err != nil {
		return nil, nil, err
	}
	log := p.Log.WithName("cni")
	registry := attachments.New(db, p.Config.OVSBridge, id, p.node.Recorded)
	a, err := addresses.New(addresses.Parts{Config: p.Config, NodeName: p.NodeName, Client: p.client, Source: p.source,
		Board: p.board, Intervals: p.Intervals.Agent, Registry: registry,
		Events: events.NewPods(p.client, p.NodeName, log), Metrics: p.metrics, Log: log})
	if err != nil {
		return nil, nil, err
	}
	v, err := pods.New(pods.Parts{Config: p.Config, Node: p.node, Source: p.source, Board: p.board,
		Intervals: p.Intervals.Agent, Registry: registry,
		Addresses: a, Metrics: p.metrics, Log: log})
	return a, v, err
}
