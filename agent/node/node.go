// Package node writes the node: one goroutine, the loop, is the only writer. It is woken up by what has changed (the
// API's objects, OVSDB, the uplink, requests of CNI verbs), and each round goes one way:
//
//	inputs (Nodes, pools; attachments in OVSDB; the node's interfaces)
//	   -> desired.Compute(Inputs) State      pure: the same inputs give the same value
//	   -> appliers, in order                  observe, compare, do (package apply)
//	   -> answers to the requests, status     what everybody else learns of the round
//
// What must outlive the process stands in OVSDB and in the kernel, each marked as ours (datapath/doc.go), so an agent
// that starts with an empty memory computes the same State and changes nothing.
package node

import (
	"context"
	"net/netip"
	"time"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/agent/apply"
	"github.com/fairlead-cni/fairlead/agent/attachments"
	"github.com/fairlead-cni/fairlead/agent/events"
	"github.com/fairlead-cni/fairlead/agent/signal"
	"github.com/fairlead-cni/fairlead/agent/status"
	"github.com/fairlead-cni/fairlead/agent/uplink"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
	"github.com/fairlead-cni/fairlead/kube/inputs"
	"github.com/fairlead-cni/fairlead/openflow"
)

// roundTimeout bounds one round. ovs-vswitchd answers in milliseconds; one that hangs must not hold up the rest for
// longer.
const roundTimeout = 10 * time.Second

// Parts are what the loop is made of.
type Parts struct {
	Config    api.AgentConfig
	NodeName  string
	Source    inputs.Source
	Advisor   *events.Advisor
	Uplink    *uplink.Uplink
	Board     *status.Board
	Intervals api.AgentIntervals
	Metrics   *status.Metrics
	Log       logr.Logger
}

// Node is the loop, and what it knows.
type Node struct {
	Parts
	// Recorded are the attachments that were on record in OVSDB.
	Recorded *attachments.Recorded

	db    database
	steps steps

	requests requests
	firstOK  chan struct{} // closed after the first round without an error
	// published is notified when the outcome of a round is known.
	published signal.Signal

	// Owned by the loop's goroutine, and by who starts the agent before it runs.
	own      inputs.Node // as it last was good (see takeOwn)
	nodes    map[string]inputs.Node
	links    links
	kernel   kernel
	progress progress
	said     said
}

// progress is what one round leaves to the next.
type progress struct {
	verify   bool // the next round observes everything again
	settled  bool // pods' part was as desired after the last round
	failures int  // rounds that failed in a row
	// degraded is what appliers can't repair, by the applier's name, as it said when it was called last.
	degraded map[string]error
	// uplinkPort is the OpenFlow port number of the uplink when OVSDB was last read; 0 is none.
	uplinkPort uint32
}

// database is what the loop itself reads of OVSDB.
type database interface {
	// Observe returns what the database has of a bridge.
	Observe(bridge string) (ovsdb.Observed, error)
	// Changed receives after each change.
	Changed() <-chan struct{}
	// Connected reports whether there is a connection.
	Connected() bool
}

// flowSwitch is the applier of flows, whose connection the loop follows.
type flowSwitch interface {
	apply.Applier
	Connected() bool
	Lost() <-chan struct{}
	Close()
	Current() []openflow.Flow
	Unanswered() []netip.Prefix
	// SyncServices has the switch follow Services that have changed, and nothing else, or is not done.
	SyncServices(ctx context.Context) (done bool, err error)
	// SyncPolicies does so with what policies depend on.
	SyncPolicies(ctx context.Context) (done bool, err error)
	// Found receives when connections were found that may have to be ended; EndFound ends them, and reports whether a
	// round has something to tell of it.
	Found() <-chan struct{}
	EndFound(ctx context.Context) (due bool)
	// Waits is why no pod can be added yet; nil if one can.
	Waits() error
}

// New returns a Node that does not run yet.
func New(p Parts) *Node {
	p.Log = p.Log.WithName("loop")
	return &Node{Parts: p, Recorded: &attachments.Recorded{}, requests: newRequests(),
		firstOK: make(chan struct{}), published: signal.New(), kernel: kernel{changed: signal.New(), log: p.Log},
		links:    links{forBridged: (*links).findForBridged},
		progress: progress{degraded: map[string]error{}}}
}

// Run works until ctx ends. Use must have been called.
func (n *Node) Run(ctx context.Context) {
	t := timers{time.NewTicker(n.Intervals.Resync), time.NewTicker(n.Intervals.Guard), time.NewTimer(0)}
	defer t.resync.Stop()
	defer t.due.Stop()
	defer t.retry.Stop()
	for ctx.Err() == nil {
		waiting, needed := n.await(ctx, t)
		if needed && !n.work(ctx, waiting) {
			t.retry.Reset(n.backOff())
		}
	}
	n.steps.close()
}

// timers are why there may be a round without a change.
type timers struct {
	resync, due *time.Ticker
	retry       *time.Timer
}

// await returns after something has happened, and whether a round is needed for it.
func (n *Node) await(ctx context.Context, t timers) (waiting []request, needed bool) { //nolint:gocyclo // a table
	select {
	case <-ctx.Done():
		return nil, false
	case r := <-n.requests.queue:
		waiting = append(waiting, r)
	case <-n.Source.Changed():
	case <-n.Source.Services().Changed():
		return nil, !n.followed(ctx, "Services", n.steps.flows.SyncServices)
	case <-n.Source.PolicyObjects().Changed():
		return nil, !n.followed(ctx, "policies", n.steps.flows.SyncPolicies)
	case <-n.Advisor.Changed:
	case <-n.Uplink.Changed:
		n.progress.verify = true
	case <-n.kernel.changed:
		n.progress.verify = true
	case <-n.db.Changed():
		return nil, !n.inPlace(ctx) // else it was the last round's own doing, or nothing of ours
	case <-n.steps.flows.Found():
		return nil, n.endFound(ctx)
	case <-n.steps.finished:
		return nil, n.steps.due()
	case <-n.steps.flows.Lost():
	case <-t.resync.C:
		n.progress.verify = true
	case <-t.due.C:
		return nil, n.steps.due()
	case <-t.retry.C:
	}
	return waiting, true
}

// work is a round, with all requests that wait by then, and reports whether nothing failed.
func (n *Node) work(ctx context.Context, waiting []request) bool {
	n.closeLostSwitch()
	if err := n.round(ctx, n.requests.gather(waiting)); err != nil {
		return false
	}
	n.progress.failures = 0
	return true
}

// closeLostSwitch lets a connection to the switch go that has ended, so that the round makes another. Each round asks:
// select takes any of what is ready, and where much is, rounds would go on to fail with the one that is lost.
func (n *Node) closeLostSwitch() {
	select {
	case <-n.steps.flows.Lost():
		n.Log.Info("OpenFlow connection lost", "bridge", n.Config.OVSBridge)
		n.steps.flows.Close()
	default:
	}
}

// backOff is the wait before the retry of a failed round. While Open vSwitch is away every wait is as long as the
// first: asking costs nothing, and pods and node wait for the answer.
func (n *Node) backOff() time.Duration {
	if !n.steps.flows.Connected() || !n.db.Connected() {
		return n.Intervals.RetryFirst
	}
	wait := min(n.Intervals.RetryFirst<<min(n.progress.failures, 10), n.Intervals.RetryMost)
	n.progress.failures++
	return wait
}

// inPlace reports whether OVSDB is as the last round left it, and asks for no other flows. Most of its changes are
// what a round has made itself, and ovs-vswitchd's answers to it; a round for each would do all the work of
// thousands of peers for nothing.
func (n *Node) inPlace(ctx context.Context) bool {
	if !n.progress.settled || n.progress.verify || n.Board.Load().NotReady != nil {
		return false
	}
	obs, err := n.db.Observe(n.Config.OVSBridge)
	return err == nil && n.steps.inPlace(ctx, obs)
}
