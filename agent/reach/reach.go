// Package reach probes the paths between pods of this node and of other nodes. Package diagnose/reach decides which
// nodes to probe, and what follows from the answers. It creates this node's end: a network namespace that is attached
// like a pod, by the same code, so that its port, flows and address are maintained like theirs. Fairlead's end is
// recognised by name: the network namespace "fairlead-reach" of ip-netns(8), and the attachment of that container ID.
//
// Nothing here decides whether the node serves pods.
package reach

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/agent/desired"
	"github.com/fairlead-cni/fairlead/agent/status"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/cniserver"
	"github.com/fairlead-cni/fairlead/datapath/link"
	pure "github.com/fairlead-cni/fairlead/diagnose/reach"
)

// ifName is the end's interface.
const ifName = "eth0"

// maxRequested is how many nodes are probed on request at once, and requestLasts for how long each.
const maxRequested, requestLasts = 4, time.Minute

// ensureEvery is how often the end is compared with what it should be, and ensureTimeout for how long that may fail.
const ensureEvery, ensureTimeout = 5 * time.Second, 30 * time.Second

// Pods attaches the end: package pods.
type Pods interface {
	// Reserve keeps an address for an attachment. The error names who has it.
	Reserve(addr netip.Addr, containerID, ifName string) error
	// Release releases all addresses of an attachment, attached or not.
	Release(containerID, ifName string) error
	Add(ctx context.Context, r cniserver.Request) (cniserver.Result, error)
	Del(ctx context.Context, r cniserver.Request) error
}

// Parts are what a Prober is made of.
type Parts struct {
	Config   api.AgentConfig
	NodeName string
	Board    *status.Board
	Metrics  *status.Metrics
	// Interval is how often a node is probed.
	Interval time.Duration
	Log      logr.Logger
}

// Prober probes other nodes' ends, and reports what is wrong.
type Prober struct {
	Parts
	mu     sync.Mutex
	report api.AgentReach
	// requested has the nodes that are probed on request, and until when.
	requested map[string]time.Time
}

// New returns a Prober that does not run yet.
func New(p Parts) *Prober {
	p.Log = p.Log.WithName("reach")
	return &Prober{Parts: p, requested: map[string]time.Time{},
		report: api.AgentReach{Problem: "the agent has not created its end yet"}}
}

// Request has a node probed for a while, in addition to those that are chosen. That node probes this one in turn, as
// long as it hears it. The number of packets sent does not change.
func (p *Prober) Request(node string, now time.Time) error {
	if p.Config.Reachability != api.ReachabilityProbe {
		return errors.New("the agent does not probe other nodes (reachability: none)")
	}
	peers := p.Board.Load().Peers
	switch i := slices.IndexFunc(peers, func(q desired.Peer) bool { return q.Name == node }); {
	case i < 0:
		return fmt.Errorf("the agent does not forward packets to a node %s", node)
	case peers[i].NoAgent != "":
		return fmt.Errorf("node %s has no agent that could be probed: %s", node, peers[i].NoAgent)
	case len(endsOf(peers[i])) == 0:
		return fmt.Errorf("no podCIDR of node %s has an address to spare for it: each needs 16 addresses or more", node)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.requested, func(_ string, until time.Time) bool { return now.After(until) })
	if _, again := p.requested[node]; !again && len(p.requested) >= maxRequested {
		return fmt.Errorf("the agent already probes %d nodes on request: try again in %s", len(p.requested), requestLasts)
	}
	p.requested[node] = now.Add(requestLasts)
	return nil
}

// requests are the nodes that are probed on request.
func (p *Prober) requests(now time.Time) (nodes []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for node, until := range p.requested {
		if !now.After(until) {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// Report returns the findings; nil if the config disables probing.
func (p *Prober) Report() *api.AgentReach {
	if p.Config.Reachability != api.ReachabilityProbe {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.report
	return &r
}

func (p *Prober) publish(r api.AgentReach) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.report = r
}

// Run maintains the end and probes from it until ctx ends. The end stays: its kernel answers while no agent runs. If
// the config disables probing, it removes the end that another agent has left.
func (p *Prober) Run(ctx context.Context, pods Pods) {
	if p.Config.Reachability != api.ReachabilityProbe {
		if removed, err := link.RemoveNetns(api.ReachEnd, false); err != nil {
			p.Log.Error(err, "removing the end that probed other nodes")
		} else if removed {
			p.Log.Info("removed the end that probed other nodes: reachability is none")
		}
		return
	}
	for ctx.Err() == nil {
		e, err := ensure(ctx, pods, p.Board.Load().PodCIDRs)
		if err == nil {
			err = p.probe(ctx, pods, e)
		}
		if err != nil && ctx.Err() == nil {
			before := p.Report().Problem
			p.publish(api.AgentReach{Problem: err.Error()})
			p.Metrics.Reach.Peers.Reset()
			if before != err.Error() {
				p.Log.Error(err, "other nodes are not probed")
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(ensureEvery):
		}
	}
}

// end is this node's end.
type end struct {
	netns string
	addrs []netip.Addr
	mtu   int
}

func (e end) equal(f end) bool {
	return e.netns == f.netns && e.mtu == f.mtu && fmt.Sprint(e.addrs) == fmt.Sprint(f.addrs)
}

// ensure creates the end, or changes nothing if it exists as it should be.
func ensure(ctx context.Context, pods Pods, podCIDRs []netip.Prefix) (end, error) {
	var wanted []netip.Addr
	for _, c := range podCIDRs {
		a := pure.End(c)
		if !a.IsValid() {
			return end{}, fmt.Errorf("podCIDR %s has no address to spare for it: it needs 16 addresses or more", c)
		}
		wanted = append(wanted, a.Addr())
	}
	if len(wanted) == 0 {
		return end{}, errors.New("this node has no podCIDR")
	}
	path, err := link.EnsureNetns(api.ReachEnd)
	if err != nil {
		return end{}, err
	}
	// It has a network name of its own: a GC of the runtime, which does not know the end, is for another network.
	request := cniserver.Request{ContainerID: api.ReachEnd, IfName: ifName, Netns: path, Network: api.ReachEnd}
	for range 2 {
		if err := reserve(pods, wanted); err != nil {
			return end{}, err
		}
		result, err := pods.Add(ctx, request)
		if err != nil {
			return end{}, fmt.Errorf("attaching the end: %w", err)
		}
		e := end{netns: path, mtu: result.MTU}
		for _, a := range result.Addrs {
			e.addrs = append(e.addrs, a.Addr())
		}
		if fmt.Sprint(e.addrs) == fmt.Sprint(wanted) {
			return e, nil
		}
		if err := pods.Del(ctx, request); err != nil { // the podCIDR has changed
			return end{}, fmt.Errorf("removing the end of an earlier podCIDR: %w", err)
		}
	}
	return end{}, fmt.Errorf("the end does not have the address %v", wanted)
}

// reserve keeps the end's addresses, all or none.
func reserve(pods Pods, wanted []netip.Addr) error {
	for _, a := range wanted {
		if err := pods.Reserve(a, api.ReachEnd, ifName); err != nil {
			err = fmt.Errorf("the address that other nodes probe is not available, will retry: %w", err)
			return errors.Join(err, pods.Release(api.ReachEnd, ifName))
		}
	}
	return nil
}

// maintainEnd returns when ctx ends, or the end is no longer e, or ensuring it has failed for long: while Open vSwitch
// is down, what is known about other nodes is kept.
func (p *Prober) maintainEnd(ctx context.Context, pods Pods, e end) error {
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(ensureEvery):
		}
		f, err := ensure(ctx, pods, p.Board.Load().PodCIDRs)
		switch {
		case err == nil && !f.equal(e):
			return nil
		case err == nil:
			last = time.Now()
		case time.Since(last) > ensureTimeout:
			return err
		}
	}
}

// probe probes from e until ctx ends, or another end is needed.
func (p *Prober) probe(ctx context.Context, pods Pods, e end) error {
	var ensuring sync.WaitGroup
	defer ensuring.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ensuring.Go(func() { cancel(p.maintainEnd(ctx, pods, e)) })
	t := newSession(p, e)
	if err := link.Within(e.netns, func() error { return t.run(ctx) }); err != nil {
		return err
	}
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
