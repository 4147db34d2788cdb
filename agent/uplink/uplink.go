// Package uplink keeps the node's NIC attached to Open vSwitch for bridged pods, as the config says, and returns it to
// the host while Open vSwitch is down. How a NIC is attached and restored, and by which journal that is recognised, is
// in package datapath/uplink.
package uplink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/fairlead-cni/fairlead/agent/desired"
	"github.com/fairlead-cni/fairlead/agent/signal"
	"github.com/fairlead-cni/fairlead/agent/status"
	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/link"
	datapath "github.com/fairlead-cni/fairlead/datapath/uplink"
	"github.com/fairlead-cni/fairlead/datapath/uplink/gateways"
	"github.com/fairlead-cni/fairlead/datapath/uplink/journal"
	"github.com/fairlead-cni/fairlead/datapath/uplink/steer"
	"github.com/fairlead-cni/fairlead/kube"
)

// gatewayLimit is how long to wait for a gateway: the kernel probes it by unicast for 3 s, then by broadcast.
const gatewayLimit = 5 * time.Second

// Uplink is the node's NIC as a port of Open vSwitch, which bridged pods need. Routed pods are served whatever its
// state.
type Uplink struct {
	journal string // path
	cfg     api.AgentConfig
	every   api.AgentIntervals
	kube    *kube.Client
	log     logr.Logger
	metrics *status.Metrics
	// Changed is notified when the uplink was repaired or is gone.
	Changed signal.Signal
	check   signal.Signal // makes Run check the uplink

	// Waits reports whether ovs-vswitchd forwards nothing new yet because it waits for flows (flow-restore-wait); nil
	// while that is unknown. It is set once, before Attach.
	Waits func() bool
	// away: the host has its NIC until Open vSwitch is back.
	away atomic.Bool

	uplink *datapath.Uplink
	nic    string // the last that attach was called with
	reach  reach  // Run's
	state  atomic.Pointer[state]
}

// state is replaced, never changed.
type state struct {
	// nic is attached, or was at the last check. holder has the host's addresses while it is: the NIC itself in mode
	// steer, whose programs are pinned in the directory pins.
	nic, holder, pins string
	attached          bool
	// why says why it is not attached, and is nil only if it is. unwritable is a *journal.Error while it is attached, but
	// its journal cannot be written.
	why, unwritable error
}

var errNoBridging = errors.New("this node has no bridged pods: enableBridgingMode is not set")

// Open reads the journal at the given path.
func Open(journal string, cfg api.AgentConfig, every api.AgentIntervals, client *kube.Client,
	m *status.Metrics, log logr.Logger) *Uplink {
	n := &Uplink{journal: journal, cfg: cfg, every: every, kube: client, log: log.WithName("uplink"), metrics: m,
		Changed: signal.New(), check: signal.New()}
	n.state.Store(&state{why: errNoBridging})
	m.Health.UplinkWanted.Set(status.Flag(cfg.EnableBridgingMode))
	m.Registry.MustRegister(steerCounts{n})
	u, err := datapath.Open(journal, n.log)
	if err != nil {
		n.publish(state{why: err})
		return n
	}
	n.uplink = u
	if u.Attached() {
		n.state.Store(attachedState(u))
	}
	return n
}

// attachedState is the status of an uplink that is attached.
func attachedState(u *datapath.Uplink) *state {
	j := u.Journal()
	return &state{nic: j.NIC.Name, holder: j.Holder(), pins: j.Pins, attached: true}
}

// Holder is the interface that has the addresses which, according to the config, are on name, which may be a pattern.
func (n *Uplink) Holder(name string) string {
	if s := n.state.Load(); s.attached && link.Matches(name, s.nic) {
		return s.holder
	}
	return name
}

// Underlay is the interface on which the host receives from the underlay while the uplink is attached, else empty.
func (n *Uplink) Underlay() string {
	if s := n.state.Load(); s.attached {
		return s.holder
	}
	return ""
}

// NIC is the interface on which the underlay is probed: the one that is attached, else the transport interface.
func (n *Uplink) NIC(transport string) string { return cmp.Or(n.state.Load().nic, transport) }

// Steers reports whether the host keeps its NIC (mode steer).
func (n *Uplink) Steers() bool {
	s := n.state.Load()
	return s.attached && s.pins != ""
}

// Sync syncs the bridged pods to the programs of mode steer.
func (n *Uplink) Sync(pods []steer.Entry) error {
	if s := n.state.Load(); s.attached && s.pins != "" {
		if err := (steer.Config{Dir: s.pins}).Sync(pods); err != nil {
			return fmt.Errorf("bridged pods are not reached: %w", err)
		}
	}
	return nil
}

// counts are the frame counters of mode steer by source and destination; none in mode bridge.
func (n *Uplink) counts() []steer.Count {
	s := n.state.Load()
	if s.pins == "" {
		return nil
	}
	counts, err := steer.Config{Dir: s.pins}.Counts()
	if err != nil {
		n.log.Error(err, "reading the uplink's frame counters")
	}
	return counts
}

// Ready returns nil if bridged pods can be served, else the reason.
func (n *Uplink) Ready() error { return n.state.Load().why }

// Unwritable says that the uplink is attached, but that its journal cannot be written; else nil.
func (n *Uplink) Unwritable() error { return n.state.Load().unwritable }

// Resume finishes what an earlier agent has begun, and restores the NIC if the config no longer wants it attached. What
// needs Open vSwitch and can't be done yet is retried by Attach.
func (n *Uplink) Resume(ctx context.Context) {
	if n.uplink == nil {
		return
	}
	if err := n.uplink.Find(ctx, n.cfg.OVSRunDir); err != nil {
		n.done(err)
		return
	}
	j := n.uplink.Journal()
	switch {
	case j == nil:
	case !n.cfg.EnableBridgingMode && (n.uplink.Attached() || n.uplink.Unfinished()):
		n.done(n.uplink.Restore(ctx, "enableBridgingMode is not set"))
	case n.uplink.Unfinished() && j.Phase != datapath.Attaching:
		n.done(n.uplink.Finish(ctx))
	case n.uplink.Unfinished() || n.uplink.Attached():
		n.done(n.uplink.Attach(ctx, n.plan(j.NIC.Name)))
	}
}

// Attach makes the NIC a port of Open vSwitch, which must be running. transport is the interface of the node's address.
func (n *Uplink) Attach(ctx context.Context, transport string) {
	if n.uplink == nil {
		return
	}
	if !n.cfg.EnableBridgingMode {
		n.Resume(ctx)
		return
	}
	j := n.uplink.Journal()
	if transport == datapath.BridgeName && j != nil {
		transport = j.NIC.Name
	}
	n.nic = transport
	if err := n.uplink.Finish(ctx); err != nil {
		n.done(err)
		return
	}
	n.attach(ctx, n.plan(transport))
}

// attach attaches the NIC, unless it has to wait for something. No restore is in progress.
func (n *Uplink) attach(ctx context.Context, p datapath.Plan) {
	j := n.uplink.Journal()
	switch {
	case n.uplink.Postponed() && !j.RetryDue(n.every.Uplink):
		n.publish(state{nic: j.NIC.Name, why: fmt.Errorf("attaching %s was rolled back: %s. The next attempt is after %s, or: "+
			"fairlead-agent uplink attach --nic %[1]s", j.NIC.Name, j.Reason, j.RetryAt.Format(time.TimeOnly))})
	case n.uplink.Unreached() && n.reached(ctx) != nil:
		n.publish(state{nic: j.NIC.Name, why: fmt.Errorf("attaching %s was rolled back: %s. Now neither the default gateway "+
			"nor the API server answers without Open vSwitch either; it is attached again when one does", j.NIC.Name, j.Reason)})
	case n.uplink.Yielded() && (!n.uplink.Due(ctx) || n.Waits == nil || n.Waits()):
		n.done(nil) // Run attaches it
	default:
		n.done(n.uplink.Attach(ctx, p))
	}
}

func (n *Uplink) plan(nic string) datapath.Plan {
	return datapath.Plan{Mode: n.cfg.Uplink.Mode, Tunnels: desired.Tunnels(n.cfg), NIC: nic,
		Datapath: n.cfg.OVSDatapathType, OVSRunDir: n.cfg.OVSRunDir, Check: n.reached,
		RollbackAfter: n.cfg.Uplink.RollbackAfter, RetryAfter: n.every.Uplink, AllowManaged: n.cfg.Uplink.AllowManaged}
}

// reached returns nil if the default gateway or the API server answers, or there is neither.
func (n *Uplink) reached(ctx context.Context) error {
	one, cancel := context.WithTimeout(ctx, gatewayLimit)
	defer cancel()
	err := n.uplink.CheckGateways(one)
	if err == nil || n.kube == nil {
		if errors.Is(err, gateways.ErrNone) {
			return nil
		}
		return err
	}
	two, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if kerr := n.kube.Reached(two); kerr != nil {
		return fmt.Errorf("%w, and the Kubernetes API server %s is not reached: %w", err, n.kube.Server, kerr)
	}
	return nil
}

// retry retries an attach that was refused or rolled back, for whatever reason: a NIC may come up or get its addresses
// late, a gateway may start later than its node, and a disk may be full for a while. What was restored manually waits
// for a manual attach, or for the next start: "fairlead-agent uplink attach" is another process, and Repair reads what
// it has done.
func (n *Uplink) retry(ctx context.Context) {
	before := n.Ready()
	_, err := n.uplink.Repair(ctx)
	if err == nil && !n.uplink.Attached() {
		err = n.uplink.Finish(ctx)
	}
	if err == nil && !n.uplink.Attached() && !n.uplink.Manual() && n.nic != "" {
		p := n.plan(n.nic)
		p.Automatic = true
		n.attach(ctx, p)
	} else {
		n.done(err)
	}
	if !sameText(before, n.Ready()) { // else the loop would verify everything, each time
		n.Changed.Notify()
	}
}

// Run reverts external changes of an attached uplink, until ctx ends: "ovs-appctl exit --cleanup" removes the interface
// with the node's addresses. It notes a manual restore, and does not revert it. If the config does not want the NIC
// attached, and it could not be restored at the start, that is retried.
func (n *Uplink) Run(ctx context.Context) {
	if n.uplink == nil {
		return
	}
	if !n.cfg.EnableBridgingMode {
		signal.Loop(ctx, n.every.Uplink, nil, n.leave)
		return
	}
	var following sync.WaitGroup
	following.Go(func() { n.followInterfaces(ctx, subscribe) })
	defer following.Wait()
	defer n.reach.close()
	signal.Loop(ctx, n.every.Uplink, n.check, n.repair)
}

// leave restores what is left of an uplink that the config no longer wants.
func (n *Uplink) leave(ctx context.Context) {
	if n.uplink.Unfinished() || n.uplink.Attached() {
		n.Resume(ctx)
		n.Changed.Notify()
	}
}

// repair reverts changes of an attached uplink, or attaches one that is not.
func (n *Uplink) repair(ctx context.Context) {
	before := n.state.Load()
	if !before.attached {
		n.retry(ctx)
		return
	}
	changes, err := n.uplink.Repair(ctx)
	if err == nil && len(changes) == 0 && n.uplink.Attached() && n.forwards(ctx) {
		changes, err = n.revertFlows(ctx)
	}
	if len(changes) > 0 {
		n.log.Info("reverted external change of the uplink", "steps", changes)
		n.metrics.Loop.Drift.WithLabelValues("uplink").Add(float64(len(changes)))
	}
	n.done(err)
	now := n.state.Load()
	if len(changes) > 0 || now.attached != before.attached || !sameText(now.unwritable, before.unwritable) {
		n.Changed.Notify()
	}
	if n.uplink.Attached() { // even if what is missing could not be restored
		n.checkReached(ctx)
	}
}

// done publishes the outcome.
func (n *Uplink) done(err error) {
	j := n.uplink.Journal()
	n.away.Store(n.uplink.Yielded())
	switch {
	case n.uplink.Attached():
		s := attachedState(n.uplink)
		s.why, s.unwritable = err, n.uplink.Unwritable()
		n.publish(*s)
	case err != nil:
		n.publish(state{why: fmt.Errorf("the node's NIC is not attached: %w", err)})
	case n.uplink.Yielded() && n.cfg.EnableBridgingMode:
		n.publish(state{nic: j.NIC.Name, why: fmt.Errorf("the node's NIC %s is not attached (%s): the host has it back "+
			"until ovs-vswitchd runs and answers again", j.NIC.Name, j.Reason)})
	case j != nil && n.cfg.EnableBridgingMode && j.Reason != "":
		n.publish(state{nic: j.NIC.Name, why: fmt.Errorf("the node's NIC %[1]s is not attached (%[2]s): "+
			"restart the agent, or fairlead-agent uplink attach --nic %[1]s", j.NIC.Name, j.Reason)})
	default:
		n.publish(state{why: errNoBridging})
	}
}

// publish replaces the state, and logs what has changed.
func (n *Uplink) publish(s state) {
	before := n.state.Swap(&s)
	n.metrics.Health.Uplink.Set(status.Flag(s.attached && s.why == nil))
	n.metrics.Health.Unwritable.Reset()
	if e := (*journal.Error)(nil); errors.As(cmp.Or(s.why, s.unwritable), &e) {
		n.metrics.Health.Unwritable.WithLabelValues(e.Path, e.Err.Error()).Set(1)
	}
	if s.unwritable != nil && !sameText(s.unwritable, before.unwritable) {
		n.log.Error(s.unwritable, "the NIC stays attached", "nic", s.nic)
	}
	switch {
	case s.why == nil && before.why != nil:
		n.log.Info("bridged pods are served through the NIC", "nic", s.nic, "holder", s.holder)
	case s.why != nil && !errors.Is(s.why, errNoBridging) && !sameText(s.why, before.why):
		n.log.Error(s.why, "bridged pods are refused")
	}
}

// sameText reports whether two errors, which may be nil, say the same.
func sameText(a, b error) bool { return fmt.Sprint(a) == fmt.Sprint(b) }
