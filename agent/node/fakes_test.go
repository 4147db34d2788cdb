package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/agent/apply"
	"github.com/fairlead-cni/fairlead/agent/desired"
	"github.com/fairlead-cni/fairlead/agent/events"
	"github.com/fairlead-cni/fairlead/agent/status"
	"github.com/fairlead-cni/fairlead/agent/uplink"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
	"github.com/fairlead-cni/fairlead/kube/inputs"
	"github.com/fairlead-cni/fairlead/openflow"
)

// newTestNode is a Node of the name "me" without appliers and without a database.
func newTestNode(t *testing.T, cfg api.AgentConfig, source inputs.Source) *Node {
	t.Helper()
	m, every := status.NewMetrics("test"), api.DefaultIntervals().Agent
	return New(Parts{Config: cfg, NodeName: "me", Source: source, Advisor: events.NewAdvisor(nil, "me", every, logr.Discard()),
		Uplink:    uplink.Open(filepath.Join(t.TempDir(), "uplink.json"), cfg, every, nil, m, logr.Discard()),
		Intervals: every, Board: status.NewBoard(source.Snapshot()), Metrics: m, Log: logr.Discard()})
}

// nowhere is a Source without manifests.
func nowhere(t *testing.T) inputs.Source {
	t.Helper()
	source, err := inputs.NewDirectory(t.TempDir(), logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	return source
}

// fakeSwitch is a flow applier that has a connection once it has been applied.
type fakeSwitch struct {
	fakeApplier
	db        *fakeDatabase
	connected bool
	waits     error // why no pod may be added yet
}

func (f *fakeSwitch) Apply(ctx context.Context, r *apply.Round) (apply.Changes, error) {
	c, err := f.fakeApplier.Apply(ctx, r)
	if errors.Is(err, apply.ErrNoSwitch) {
		f.connected = false
		return c, err
	}
	f.connected = true
	r.Observed, _ = f.db.Observe(r.Want.OVSDB.Bridge)
	return c, err
}

func (f *fakeSwitch) Connected() bool        { return f.connected }
func (*fakeSwitch) Lost() <-chan struct{}    { return nil }
func (f *fakeSwitch) Close()                 { f.connected = false }
func (*fakeSwitch) Current() []openflow.Flow { return nil }

func (*fakeSwitch) Unanswered() []netip.Prefix { return nil }

// SyncServices implements flowSwitch.
func (*fakeSwitch) SyncServices(context.Context) (bool, error) { return true, nil }

// SyncPolicies implements flowSwitch.
func (*fakeSwitch) SyncPolicies(context.Context) (bool, error) { return true, nil }

// Found implements flowSwitch.
func (*fakeSwitch) Found() <-chan struct{} { return nil }

// EndFound implements flowSwitch.
func (*fakeSwitch) EndFound(context.Context) bool { return false }

// Waits implements flowSwitch.
func (f *fakeSwitch) Waits() error { return f.waits }

// NeedsVerify, InPlace and Due make it an apply.Watcher, as the flow applier is.
func (f *fakeSwitch) NeedsVerify(ovsdb.Observed) bool            { return !f.connected }
func (*fakeSwitch) InPlace(context.Context, ovsdb.Observed) bool { return true }
func (*fakeSwitch) Due() bool                                    { return false }

// fault is how an applier fails.
type fault int

const (
	fails fault = iota // does nothing
	half               // does half of it
	hangs              // does nothing until the round's time is over
	gone               // finds no switch
)

func (f fault) String() string { return []string{"fails", "does half", "hangs", "finds no switch"}[f] }

var errFault = errors.New("fault")

// fakeApplier applies pods' names to a state of its own, as each applier applies its part to the node, and fails at the
// calls for which it has a fault. Like an applier it remembers what it applied, and observes only when asked to.
type fakeApplier struct {
	name   string
	faults map[int]fault // by call with work to do, from 1
	calls  int
	// there is the state in place, and applied the remembered one; hands counts the external changes that it has
	// reverted.
	there, applied string
	did            bool
	hands          int
	degraded       error         // the problem that it reports as not repairable
	failed         time.Time     // the last failure, if there was no success after it
	healed         time.Duration // the longest time from a failure to the success after it
	lost           func()        // removes what all appliers have in place, as a restart of ovs-vswitchd does
}

func (f *fakeApplier) Name() string { return f.name }

func (f *fakeApplier) Apply(ctx context.Context, r *apply.Round) (c apply.Changes, err error) {
	c.Degraded = f.degraded
	want := wanted(r.Want)
	same := f.did && f.applied == want
	if same && !r.Verify {
		return c, nil
	}
	f.calls++
	if fault, fails := f.faults[f.calls]; fails {
		err := f.fail(ctx, fault, want)
		f.failed = time.Now()
		return c, err
	}
	if !f.failed.IsZero() {
		f.healed, f.failed = max(f.healed, time.Since(f.failed)), time.Time{}
	}
	if f.there != want && same && r.Settled {
		f.hands++
		c.Repaired = []string{f.there + " instead of " + want}
	}
	f.there, f.applied, f.did = want, want, true
	return c, nil
}

func (f *fakeApplier) fail(ctx context.Context, kind fault, want string) error {
	switch kind {
	case half:
		f.there = "half of " + want
	case hangs:
		<-ctx.Done()
	case gone:
		f.lost()
		return fmt.Errorf("%w: %w", apply.ErrNoSwitch, errFault)
	}
	return errFault
}

// wanted is what fake appliers put in place: the pods.
func wanted(s desired.State) string {
	var names []string
	for _, a := range s.OVSDB.Pods {
		names = append(names, a.HostIf)
	}
	return fmt.Sprint(names)
}

// fakeDatabase has the pods that a fake OVSDB applier wrote, each with a port number.
type fakeDatabase struct {
	pods    []api.Attachment
	changed chan struct{}
}

func (d *fakeDatabase) Observe(string) (o ovsdb.Observed, err error) {
	o.Gateway.OFPort = 1
	for i, a := range d.pods {
		o.Pods = append(o.Pods, ovsdb.PodPort{Attachment: a, OFPort: uint32(10 + i)})
	}
	return o, nil
}

func (d *fakeDatabase) Changed() <-chan struct{} { return d.changed }
func (*fakeDatabase) Connected() bool            { return true }

// fakeRecords is a fake applier that writes to a fakeDatabase, and fakeStale one that removes from it.
type fakeRecords struct {
	fakeApplier
	db *fakeDatabase
}

func (f *fakeRecords) Apply(ctx context.Context, r *apply.Round) (apply.Changes, error) {
	c, err := f.fakeApplier.Apply(ctx, r)
	if err == nil {
		for _, a := range r.Want.OVSDB.Pods {
			if !slices.ContainsFunc(f.db.pods, a.Equal) {
				f.db.pods = append(f.db.pods, a)
			}
		}
	}
	return c, err
}

type fakeStale struct {
	fakeApplier
	db *fakeDatabase
}

func (f *fakeStale) Apply(ctx context.Context, r *apply.Round) (apply.Changes, error) {
	c, err := f.fakeApplier.Apply(ctx, r)
	if err == nil {
		f.db.pods = slices.Clone(r.Want.OVSDB.Pods)
	}
	return c, err
}
