package agent

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/vishvananda/netlink"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/datapath/uplink"
	"github.com/fairlead-cni/fairlead/datapath/uplink/steer"
	"github.com/fairlead-cni/fairlead/datapath/vswitchd"
	"github.com/fairlead-cni/fairlead/kube"
)

const (
	// mendEvery is how often the uplink is looked at though no interface has told of a change.
	mendEvery = 10 * time.Second
	// vswitchdEvery is how often the agent looks whether ovs-vswitchd runs.
	vswitchdEvery = 500 * time.Millisecond
	// deadInUserspace and deadInKernel are how long ovs-vswitchd may be dead until the host gets its NIC back: at once
	// nothing passes the userspace datapath, while the kernel's goes on with the flows that it has. Both are longer than
	// any restart of a process takes.
	deadInUserspace, deadInKernel = 4 * time.Second, 10 * time.Second
)

// nodeUplink is the node's NIC as a port of Open vSwitch, which bridged pods need. Whatever is wrong with it, routed
// pods are served.
type nodeUplink struct {
	cfg     api.AgentConfig
	kube    *kube.Client
	log     logr.Logger
	metrics *metrics
	// changed gets a value when the uplink was mended or is there no more; look has keep look at it.
	changed, look chan struct{}

	// waits reports whether ovs-vswitchd forwards nothing new yet, because it waits for flows (restoreWait); nil as long
	// as nobody can tell.
	waits func() bool
	// away: the host has its NIC until Open vSwitch is back.
	away atomic.Bool

	uplink *uplink.Uplink
	nic    string // the last that attach was called with
	status atomic.Pointer[uplinkStatus]
}

// uplinkStatus is replaced, never changed.
type uplinkStatus struct {
	// nic is attached, or was the last time somebody looked. holder has the host's addresses then: the NIC itself in mode
	// steer, whose programs are pinned in the directory pins.
	nic, holder, pins string
	attached          bool
	// why says why not, nil only if it is.
	why error
}

var errNoBridging = errors.New("this node has no bridged pods: enableBridgingMode is not set")

// openUplink reads the journal. One that can't be read is no reason to end.
func openUplink(o Options, kube *kube.Client, m *metrics) *nodeUplink {
	n := &nodeUplink{cfg: o.Config, kube: kube, log: o.Log.WithName("uplink"), metrics: m,
		changed: make(chan struct{}, 1), look: make(chan struct{}, 1)}
	n.status.Store(&uplinkStatus{why: errNoBridging})
	m.registry.MustRegister(steerCounts{n})
	u, err := uplink.Open(uplink.DefaultJournal, n.log)
	if err != nil {
		n.tell(uplinkStatus{why: err})
		return n
	}
	n.uplink = u
	if u.Attached() {
		n.status.Store(attachedAs(u))
	}
	return n
}

// attachedAs is the status of an uplink that is attached.
func attachedAs(u *uplink.Uplink) *uplinkStatus {
	j := u.Journal()
	return &uplinkStatus{nic: j.NIC.Name, holder: j.Holder(), pins: j.Pins, attached: true}
}

// holder is the interface that has the addresses which the config says are on name.
func (n *nodeUplink) holder(name string) string {
	if s := n.status.Load(); s.attached && s.nic == name {
		return s.holder
	}
	return name
}

// underlay is the interface on which the host hears the underlay while the uplink is attached, else empty.
func (n *nodeUplink) underlay() string {
	if s := n.status.Load(); s.attached {
		return s.holder
	}
	return ""
}

// steers reports whether the host keeps its NIC (mode steer).
func (n *nodeUplink) steers() bool {
	s := n.status.Load()
	return s.attached && s.pins != ""
}

// know tells the programs of mode steer which bridged pods there are.
func (n *nodeUplink) know(pods []steer.Entry) error {
	if s := n.status.Load(); s.attached && s.pins != "" {
		if err := (steer.Config{Dir: s.pins}).Sync(pods); err != nil {
			return fmt.Errorf("bridged pods are not reached: %w", err)
		}
	}
	return nil
}

// counts are how many frames of mode steer went which way; none in mode bridge.
func (n *nodeUplink) counts() []steer.Count {
	s := n.status.Load()
	if s.pins == "" {
		return nil
	}
	counts, err := steer.Config{Dir: s.pins}.Counts()
	if err != nil {
		n.log.Error(err, "no counts of the uplink's frames")
	}
	return counts
}

// ready returns nil if bridged pods can be served, else the reason.
func (n *nodeUplink) ready() error { return n.status.Load().why }

// resume brings to an end what an agent before has begun, and takes the NIC back where the config does not want it any
// more. What can't be done yet, for want of Open vSwitch, is tried again by attach.
func (n *nodeUplink) resume(ctx context.Context) {
	if n.uplink == nil {
		return
	}
	j := n.uplink.Journal()
	switch {
	case j == nil:
	case !n.cfg.EnableBridgingMode && (n.uplink.Attached() || n.uplink.Unfinished()):
		n.done(n.uplink.Restore(ctx, "enableBridgingMode is not set"))
	case n.uplink.Unfinished() && j.Phase != uplink.Attaching:
		n.done(n.uplink.Restore(ctx, j.Reason))
	case n.uplink.Unfinished() || n.uplink.Attached():
		n.done(n.uplink.Attach(ctx, n.plan(j.NIC.Name)))
	}
}

// attach makes the NIC a port of Open vSwitch. Open vSwitch answers. transport is the interface of the node's address.
func (n *nodeUplink) attach(ctx context.Context, transport string) {
	if n.uplink == nil {
		return
	}
	j := n.uplink.Journal()
	switch {
	case !n.cfg.EnableBridgingMode:
		n.resume(ctx)
	case j != nil && j.Phase == uplink.Detached && j.Unreached && n.uplink.ThisBoot():
		n.tell(uplinkStatus{nic: j.NIC.Name, why: fmt.Errorf("an attach of %s was undone: %s. When that is mended: "+
			"fairlead-agent uplink attach --nic %s", j.NIC.Name, j.Reason, j.NIC.Name)})
	default:
		if transport == uplink.BridgeName && j != nil {
			transport = j.NIC.Name
		}
		n.nic = transport
		if n.uplink.Yielded() && (!n.uplink.Due() || n.waits == nil || n.waits()) {
			n.done(nil) // keep attaches it
			return
		}
		n.done(n.uplink.Attach(ctx, n.plan(transport)))
	}
}

func (n *nodeUplink) plan(nic string) uplink.Plan {
	return uplink.Plan{Mode: n.cfg.Uplink.Mode, Tunnels: tunnels(n.cfg), NIC: nic,
		Datapath: n.cfg.OVSDatapathType, OVSRunDir: n.cfg.OVSRunDir, Check: n.reached,
		RollbackAfter: n.cfg.Uplink.RollbackAfter, AllowManaged: n.cfg.Uplink.AllowManaged}
}

// reached returns nil if the default gateway or the API server answers, or there is none of both to ask.
func (n *nodeUplink) reached(ctx context.Context) error {
	one, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	err := n.uplink.CheckGateways(one)
	if err == nil || n.kube == nil {
		if errors.Is(err, uplink.ErrNoGateway) {
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

// yieldLoop gives the host its NIC back when ovs-vswitchd stays dead, and has keep look while it is back and the NIC is
// not, until ctx ends. It needs nothing that comes over the network.
func (n *nodeUplink) yieldLoop(ctx context.Context) {
	if n.uplink == nil || !n.cfg.EnableBridgingMode {
		return
	}
	dead := deadInKernel
	if n.cfg.OVSDatapathType == api.DatapathNetdev {
		dead = deadInUserspace
	}
	tick := time.NewTicker(vswitchdEvery)
	defer tick.Stop()
	start, since, yielded := vswitchd.RunningStartID(n.cfg.OVSRunDir), time.Now(), false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if now := vswitchd.RunningStartID(n.cfg.OVSRunDir); now != start {
			start, since, yielded = now, time.Now(), false
		}
		if start != "" && n.away.Load() {
			poke(n.look)
		}
		if start == "" && !yielded && time.Since(since) >= dead {
			yielded = n.yield(ctx)
			poke(n.look)
		}
	}
}

// yield reports whether there is no more to be done about it.
func (n *nodeUplink) yield(ctx context.Context) bool {
	// One of its own: n.uplink may be at work, or wait for Open vSwitch.
	u, err := uplink.Open(uplink.DefaultJournal, n.log)
	did := false
	if err == nil {
		did, err = u.Yield(ctx, uplink.VswitchdDead)
	}
	if err != nil {
		n.log.Error(err, "no ovs-vswitchd runs, and the host's NIC could not be given back to it")
		return false
	}
	if did {
		n.log.Error(errors.New(uplink.VswitchdDead), "the host has its NIC back until one does", "nic", u.Journal().NIC.Name)
	}
	return true
}

// retry attaches after all what was refused before: a NIC may come up or get its addresses late. What was undone, or
// restored by hand, waits for somebody to say so, or for the next start: "fairlead-agent uplink attach" is another
// process, and Mend reads what it has done.
func (n *nodeUplink) retry(ctx context.Context) {
	if _, err := n.uplink.Mend(ctx); n.uplink.Attached() {
		n.done(err)
		n.tellLoop()
		return
	}
	if j := n.uplink.Journal(); n.nic == "" ||
		j != nil && n.uplink.ThisBoot() && j.Phase == uplink.Detached && !n.uplink.Yielded() {
		return
	}
	n.attach(ctx, n.nic)
	n.tellLoop()
}

// keep puts back what somebody changes of an attached uplink, until ctx ends: "ovs-appctl exit --cleanup" takes the
// interface with the node's addresses away. It takes note of a restore by hand, and leaves it at that.
func (n *nodeUplink) keep(ctx context.Context) {
	if n.uplink == nil || !n.cfg.EnableBridgingMode {
		return
	}
	links, addrs := make(chan netlink.LinkUpdate, 100), make(chan netlink.AddrUpdate, 100)
	err := errors.Join(netlink.LinkSubscribe(links, ctx.Done()), netlink.AddrSubscribe(addrs, ctx.Done()))
	if err != nil {
		n.log.Error(err, "following interfaces; changes of the uplink are seen every "+mendEvery.String())
	}
	tick := time.NewTicker(mendEvery)
	defer tick.Stop()
	index := 0 // of br-uplink, as last heard
	for {
		select {
		case <-ctx.Done():
			return
		case l, ok := <-links:
			if !ok {
				links = nil
				continue
			}
			if l.Attrs().Name == uplink.BridgeName {
				index = l.Attrs().Index
			} else if l.Attrs().Name != n.status.Load().nic {
				continue
			}
		case a, ok := <-addrs:
			if !ok {
				addrs = nil
				continue
			}
			if a.NewAddr || index != 0 && a.LinkIndex != index {
				continue
			}
		case <-n.look:
		case <-tick.C:
		}
		n.mend(ctx)
	}
}

func (n *nodeUplink) mend(ctx context.Context) {
	before := n.status.Load()
	if !before.attached {
		n.retry(ctx)
		return
	}
	changes, err := n.uplink.Mend(ctx)
	if len(changes) > 0 {
		n.log.Info("the uplink was changed or lost, and was set right", "steps", changes)
		n.metrics.drift.WithLabelValues("uplink").Add(float64(len(changes)))
	}
	n.done(err)
	if len(changes) > 0 || n.status.Load().attached != before.attached {
		n.tellLoop()
	}
}

func (n *nodeUplink) tellLoop() { poke(n.changed) }

// done makes the outcome known.
func (n *nodeUplink) done(err error) {
	j := n.uplink.Journal()
	n.away.Store(n.uplink.Yielded())
	switch {
	case n.uplink.Attached():
		s := attachedAs(n.uplink)
		s.why = err
		n.tell(*s)
	case err != nil:
		n.tell(uplinkStatus{why: fmt.Errorf("the node's NIC is not attached: %w", err)})
	case n.uplink.Yielded() && n.cfg.EnableBridgingMode:
		n.tell(uplinkStatus{nic: j.NIC.Name, why: fmt.Errorf("the node's NIC %s is not attached (%s): the host has it back "+
			"until ovs-vswitchd runs again", j.NIC.Name, j.Reason)})
	case j != nil && j.Phase == uplink.Detached && n.cfg.EnableBridgingMode && j.Reason != "":
		n.tell(uplinkStatus{nic: j.NIC.Name, why: fmt.Errorf("the node's NIC %[1]s is not attached (%[2]s): "+
			"start the agent anew, or fairlead-agent uplink attach --nic %[1]s", j.NIC.Name, j.Reason)})
	default:
		n.tell(uplinkStatus{why: errNoBridging})
	}
}

func (n *nodeUplink) tell(s uplinkStatus) {
	before := n.status.Swap(&s)
	n.metrics.uplink.Set(one(s.attached && s.why == nil))
	switch {
	case s.why == nil && before.why != nil:
		n.log.Info("bridged pods are served through the NIC", "nic", s.nic, "addresses on", s.holder)
	case s.why != nil && !errors.Is(s.why, errNoBridging) && (before.why == nil || before.why.Error() != s.why.Error()):
		n.log.Error(s.why, "bridged pods are refused")
	}
}
