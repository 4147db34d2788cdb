package apply

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"path/filepath"
	"runtime/debug"
	"slices"
	"syscall"
	"time"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/agent/policies"
	"github.com/fairlead-cni/fairlead/agent/signal"
	"github.com/fairlead-cni/fairlead/agent/status"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
	"github.com/fairlead-cni/fairlead/datapath/vswitchd"
	"github.com/fairlead-cni/fairlead/kube/inputs"
	"github.com/fairlead-cni/fairlead/openflow"
	"github.com/fairlead-cni/fairlead/openflow/clusterip"
	"github.com/fairlead-cni/fairlead/openflow/renewal"
	"github.com/fairlead-cni/fairlead/openflow/tables"
)

// ErrNoSwitch is wrapped in an error of Flows if ovs-vswitchd does not answer: then nothing else on the node can be
// applied.
var ErrNoSwitch = errors.New("no connection to ovs-vswitchd")

// staleFor is how long packets may still be handled by the tables from before a change: ovs-vswitchd confirms a change
// at once, and then revalidates the datapath's megaflows, which takes milliseconds, on a busy machine seconds. One such
// packet is enough to recreate a conntrack entry that was removed because of the change.
const staleFor = 3 * time.Second

// noSwitchError has only the text of its cause.
type noSwitchError struct{ error }

// Unwrap makes errors.Is find ErrNoSwitch and the cause.
func (e noSwitchError) Unwrap() []error { return []error{ErrNoSwitch, e.error} }

// Flows applies the bridge's flows. Flows of new pods are written before their ports exist, whose numbers are
// requested, unless there is more to do.
type Flows struct {
	db       *ovsdb.DB
	bridge   string
	runDir   string // of Open vSwitch
	datapath string // its type
	log      logr.Logger
	metrics  *status.LoopMetrics

	sw     *openflow.Switch // nil: not connected
	view   tables.View      // what the flows were computed from
	flows  []openflow.Flow  // what the switch confirmed last
	shared clusterip.Services
	// services are the Services that Open vSwitch translates; nil: none.
	services *servicePorts
	leftover leftover
	numbers  portNumbers // the port numbers in the confirmed flows, from OVSDB
	policies policyState
	flowStats
}

// flowStats is what the flows have counted, from the last list of them, and the log of what they deny.
type flowStats struct {
	denied     deniedLog
	verdicts   map[openflow.Key]uint64 // packets
	traffic    traffic
	unanswered []netip.Prefix
}

// policyState is the state of policies.
type policyState struct {
	rules *policies.Rules // nil: none is enforced
	// allSent: the switch has been given all of them since it was connected. Otherwise the differences would be all that
	// it has.
	allSent bool
	// adopted: the rules are known, and the flows of an earlier agent on the switch have been examined.
	adopted bool
	// waitUntil is until when no pod is closed because policies are not known.
	waitUntil time.Time
	// tightened: connections may be open that the rules now deny.
	tightened scan
	// since is when the first change that the switch may not enforce yet was handed over; zero for none.
	since    time.Time
	problems []string // as logged last
	counted  map[policies.Counter]uint64
}

// NewFlows returns the applier for the bridge that the config names.
func NewFlows(db *ovsdb.DB, cfg api.AgentConfig, node string, source inputs.Source, m *status.LoopMetrics,
	log logr.Logger) *Flows {
	f := &Flows{db: db, bridge: cfg.OVSBridge, runDir: cfg.OVSRunDir, datapath: cfg.OVSDatapathType, metrics: m, log: log}
	f.traffic = newTraffic()
	found := signal.New()
	f.policies.tightened = newScan(found)
	f.leftover = leftover{gone: map[openflow.Translation]time.Time{}, unseen: newScan(found)}
	if cfg.Services == api.ServicesOVS {
		f.services = newServicePorts(source, node, log)
	}
	if cfg.NetworkPolicies == api.PoliciesEnforce {
		f.policies.rules = policies.NewRules(source.PolicyObjects())
		f.policies.rules.LogDenied(cfg.PolicyLogDenied)
		if cfg.PolicyStart == api.PolicyStartWait {
			f.policies.waitUntil = time.Now().Add(cfg.PolicyStartWait)
		}
	}
	return f
}

// Name implements Applier.
func (*Flows) Name() string { return "flows" }

// Connected reports whether there is, as far as is known, a connection to the switch.
func (f *Flows) Connected() bool { return f.sw != nil }

// Lost is closed when the connection ends; nil where there is none.
func (f *Flows) Lost() <-chan struct{} {
	if f.sw == nil {
		return nil
	}
	return f.sw.Done()
}

// Close ends the connection, or takes note that it has ended. The flows stay.
func (f *Flows) Close() {
	if f.sw != nil {
		f.sw.Close()
		f.sw = nil
	}
	f.denied.close()
}

// Stop is Close, and ends work in parallel to the rounds.
func (f *Flows) Stop() {
	f.policies.tightened.stop()
	f.leftover.unseen.stop()
	f.Close()
}

// Current are the flows that the switch confirmed last. They must not be changed.
func (f *Flows) Current() []openflow.Flow { return f.flows }

// Unanswered are the podCIDRs of other nodes to which, when the flows were listed last, packets were sent through the
// tunnel while none had come back for some seconds.
func (f *Flows) Unanswered() []netip.Prefix { return f.unanswered }

// NeedsVerify implements Watcher: an ovs-vswitchd to which there is no connection yet may have recreated every device.
func (f *Flows) NeedsVerify(ovsdb.Observed) bool { return f.sw == nil }

// InPlace implements Watcher.
func (f *Flows) InPlace(_ context.Context, obs ovsdb.Observed) bool {
	return f.sw != nil && maps.Equal(numbersIn(obs), f.numbers)
}

// Due implements Watcher: it is true when connections of Services or policies are to be removed from conntrack once
// more. It also writes what is due in the log of denied packets.
func (f *Flows) Due() bool {
	now := time.Now()
	f.logDenied(now)
	return f.policies.tightened.due(now) || f.recheckDue(now) || f.leftover.due(now)
}

// Apply implements Applier. It leaves in r what OVSDB has when the new ports have their numbers; a port that gets none
// is not an error here.
func (f *Flows) Apply(ctx context.Context, r *Round) (c Changes, err error) {
	ahead := r.Settled && !r.Verify && len(r.Added) > 0
	if !ahead {
		f.waitPorts(ctx, r.Added)
	}
	fresh := f.sw == nil
	if fresh {
		if f.sw, err = f.dial(ctx); err != nil {
			return c, err
		}
		f.resetSent()
	}
	c.Repaired, err = f.sync(ctx, r, fresh)
	if c.Degraded = errors.Join(f.policies.unknown(), f.scanErrors()); err != nil || !ahead {
		return c, err
	}
	f.waitPorts(ctx, r.Added)
	if err := f.observe(r); err != nil {
		return c, err
	}
	other := func(p ovsdb.PodPort) bool {
		return p.OFPort != 0 && p.OFPort != f.numbers[p.HostIf] && slices.Contains(r.Added, p.HostIf)
	}
	if slices.ContainsFunc(r.Observed.Pods, other) { // a port did not get the number that it asked for
		_, err = f.sync(ctx, r, false)
	}
	return c, err
}

// socket is the management socket of the bridge.
func (f *Flows) socket() string { return filepath.Join(f.runDir, f.bridge+".mgmt") }

func (f *Flows) dial(ctx context.Context) (*openflow.Switch, error) {
	sw, err := openflow.Dial(ctx, f.socket(), f.log.WithName("openflow"))
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return nil, noSwitchError{fmt.Errorf("ovs-vswitchd is down: %w", err)}
	case err != nil:
		return nil, noSwitchError{fmt.Errorf("ovs-vswitchd does not answer: %w", err)}
	}
	sw.OnFlowStats(f.countFlow)
	if version, _ := vswitchd.Version(ctx, f.runDir); f.datapath == api.DatapathNetdev && renewal.Needed(version) {
		sw.RenewWith(renewal.Flows)
	}
	return sw, nil
}

// countFlow records the counters of a flow of a verdict or of a peer.
func (f *Flows) countFlow(flow *openflow.Flow, packets uint64, idle time.Duration) {
	switch {
	case flow.Kind == openflow.KindPeer:
		f.traffic.flow(flow, idle)
	case f.verdicts == nil:
		f.verdicts = map[openflow.Key]uint64{flow.Key(): packets}
	default:
		f.verdicts[flow.Key()] = packets
	}
}

// sync writes the desired flows and waits for the switch to confirm them. In a round that verifies, it first lists the
// switch's flows and restores the previous ones, so that the missing ones can be reported.
func (f *Flows) sync(ctx context.Context, r *Round, fresh bool) (repaired []string, err error) {
	verified := false // the switch has confirmed f.flows in this round
	switch {
	case fresh:
	case r.Verify && r.Settled:
		if repaired, err = f.revert(ctx); err != nil {
			return repaired, fmt.Errorf("OpenFlow: %w", err)
		}
		verified = true
	case r.Verify:
		f.sw.Resync()
	}
	if err := f.observe(r); err != nil {
		return repaired, err
	}
	before := f.allSent()
	f.setServices()
	err = f.change(ctx, r, verified)
	f.markUnconfirmed(err)
	if err != nil {
		return repaired, err
	}
	f.servicesSynced(ctx)
	f.policiesSynced()
	if fresh || r.Verify { // the flows were listed
		f.unanswered, f.traffic = f.traffic.unanswered(), newTraffic()
	}
	f.scanDenied(ctx)
	if f.allSent() != before {
		debug.FreeOSMemory() // reading the cluster and the switch left much garbage
	}
	return repaired, nil
}

// allSent reports whether the switch was given all Services and policies.
func (f *Flows) allSent() bool {
	return (f.services == nil || f.services.allSent) && (f.policies.rules == nil || f.policies.allSent)
}

// resetSent notes that the switch was given nothing.
func (f *Flows) resetSent() {
	f.policies.allSent = false
	if f.services != nil {
		f.services.allSent, f.leftover.unseen.now = false, true
	}
}

// change writes the flows that are desired now, unless the switch has confirmed them already.
func (f *Flows) change(ctx context.Context, r *Round, verified bool) error {
	view, want, shared := r.Want.View(r.Observed), f.flows, f.services.shared(r.Want.ServiceCIDRs)
	if err := f.setPolicies(ctx, r, view); err != nil {
		return err
	}
	// The flows of thousands of peers are most of a round's work.
	same := f.flows != nil && view.Equal(f.view) && shared.Equal(f.shared)
	if !same {
		want = append(tables.Pipeline(view), clusterip.Flows(view, shared)...)
	}
	if same && verified {
		if err := f.syncUnits(ctx); err != nil { // Services or policies may have changed since
			return fmt.Errorf("OpenFlow: %w", err)
		}
	} else {
		changes, err := f.sw.Sync(ctx, want)
		if err != nil {
			return fmt.Errorf("OpenFlow: %w", err)
		}
		f.metrics.FlowsSynced(len(want), changes)
	}
	f.view, f.flows, f.shared, f.numbers = view, want, shared, numbersFor(r.Want.OVSDB, r.Observed)
	return nil
}

// syncUnits updates the switch's flows of Services and policies, and counts the changes.
func (f *Flows) syncUnits(ctx context.Context) error {
	changes, err := f.sw.SyncUnits(ctx)
	f.markUnconfirmed(err)
	f.metrics.FlowsChanged(changes)
	return err
}

// observe reads OVSDB again. After an error, r keeps what was read before.
func (f *Flows) observe(r *Round) error {
	obs, err := f.db.Observe(f.bridge)
	if err == nil {
		r.Observed = obs
	}
	return err
}

// revert lists the switch's flows and restores the previous ones.
func (f *Flows) revert(ctx context.Context) (repaired []string, err error) {
	f.sw.Resync()
	c, err := f.sw.Sync(ctx, f.flows)
	f.markUnconfirmed(err)
	f.metrics.FlowsSynced(len(f.flows), c)
	if c != (openflow.Changes{}) {
		repaired = []string{fmt.Sprintf("%d were missing, %d altered, %d foreign", c.Added, c.Modified, c.Deleted)}
	}
	return repaired, err
}

// waitPorts waits until the new pods have port numbers. If a port gets none, only its pod's request fails, when it is
// answered.
func (f *Flows) waitPorts(ctx context.Context, ports []string) {
	if len(ports) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, portTimeout)
	defer cancel()
	if err := f.db.WaitOFPorts(ctx, ports...); err != nil {
		f.log.Error(err, "pod port has no OpenFlow port number")
	}
}
