// Package node writes the node: one goroutine, the loop, is the only writer. Changes (of API objects, OVSDB, the
// uplink, requests of CNI verbs) wake it up, and each round takes the same path:
//
//	inputs (Nodes, pools; attachments in OVSDB; the node's interfaces)
//	   -> desired.Compute(Inputs) State      pure: the same inputs give the same value
//	   -> appliers, in order                  observe, compare, do (package apply)
//	   -> answers to the requests, status     what everybody else learns of the round
//
// What must outlive the process is in OVSDB and in the kernel, marked as Fairlead's (datapath/doc.go), so an agent that
// starts with an empty memory computes the same State and changes nothing.
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

// roundTimeout bounds one round. ovs-vswitchd answers in milliseconds; one that hangs must not delay the rest for
// longer.
const roundTimeout = 10 * time.Second

// Parts are the dependencies of the loop.
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

// Node is the loop and its state.
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

	// Owned by the loop's goroutine, and before it runs by the goroutine that starts the agent.
	own        inputs.Node // its last valid state (see updateOwn)
	nodes      map[string]inputs.Node
	links      links
	kernel     kernel
	progress   progress
	lastLogged lastLogged
}

// progress is the state that one round leaves to the next.
type progress struct {
	verify   bool // the next round observes everything again
	settled  bool // what pods depend on was as desired after the last round
	failures int  // rounds that failed in a row
	// degraded is what appliers can't repair, by the applier's name, as of its last call.
	degraded map[string]error
	// uplinkPort is the OpenFlow port number of the uplink when OVSDB was last read; 0 is none.
	uplinkPort uint32
}

// database is what the loop itself uses of OVSDB.
type database interface {
	// Observe returns what the database has about a bridge.
	Observe(bridge string) (ovsdb.Observed, error)
	// Changed receives after each change.
	Changed() <-chan struct{}
	// Connected reports whether there is a connection.
	Connected() bool
}

// flowSwitch is the flow applier, whose connection the loop watches.
type flowSwitch interface {
	apply.Applier
	Connected() bool
	Lost() <-chan struct{}
	Close()
	Current() []openflow.Flow
	Unanswered() []netip.Prefix
	// SyncServices updates the switch for changed Services, and nothing else; done is false if a round is needed.
	SyncServices(ctx context.Context) (done bool, err error)
	// SyncPolicies does the same for the inputs of policies.
	SyncPolicies(ctx context.Context) (done bool, err error)
	// Found receives when connections that may have to be ended were found; EndFound ends them, and reports whether a
	// round has something to report about it.
	Found() <-chan struct{}
	EndFound(ctx context.Context) (due bool)
	// Waits returns why no pod can be added yet; nil if one can.
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

// timers trigger rounds without a change.
type timers struct {
	resync, due *time.Ticker
	retry       *time.Timer
}

// await waits for an event, and returns whether it needs a round.
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
		return nil, !n.inPlace(ctx) // else it was the last round's own change, or is not Fairlead's
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

// work runs a round, with all requests that wait by then, and reports whether nothing failed.
func (n *Node) work(ctx context.Context, waiting []request) bool {
	n.closeLostSwitch()
	if err := n.round(ctx, n.requests.gather(waiting)); err != nil {
		return false
	}
	n.progress.failures = 0
	return true
}

// closeLostSwitch closes a connection to the switch that has ended, so that the round makes another. It is called in
// each round: select picks any ready case, and with many ready, rounds would keep failing with the lost connection.
func (n *Node) closeLostSwitch() {
	select {
	case <-n.steps.flows.Lost():
		n.Log.Info("OpenFlow connection lost", "bridge", n.Config.OVSBridge)
		n.steps.flows.Close()
	default:
	}
}

// backOff is the wait before the retry of a failed round. While Open vSwitch is down, every wait is as long as the
// first: trying costs little, and pods and node depend on it.
func (n *Node) backOff() time.Duration {
	if !n.steps.flows.Connected() || !n.db.Connected() {
		return n.Intervals.RetryFirst
	}
	wait := min(n.Intervals.RetryFirst<<min(n.progress.failures, 10), n.Intervals.RetryMost)
	n.progress.failures++
	return wait
}

// inPlace reports whether OVSDB is as the last round left it, and needs no other flows. Most of its changes are a
// round's own, and ovs-vswitchd's answers to them; a round for each would needlessly process thousands of peers.
func (n *Node) inPlace(ctx context.Context) bool {
	if !n.progress.settled || n.progress.verify || n.Board.Load().NotReady != nil {
		return false
	}
	obs, err := n.db.Observe(n.Config.OVSBridge)
	return err == nil && n.steps.inPlace(ctx, obs)
}
