package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/cniserver/conflist"
	"github.com/fairlead-cni/fairlead/cniserver/wire"
	"github.com/fairlead-cni/fairlead/datapath/ovsdb"
	"github.com/fairlead-cni/fairlead/ipam/hostlocal"
	"github.com/fairlead-cni/fairlead/kube"
	"github.com/fairlead-cni/fairlead/kube/inputs"
)

// RunDir holds what lasts as long as the boot. It is the same on every node; the
// lab gives each node a mount namespace.
const RunDir = "/run/fairlead"

// reconcileEvery is how often the agent looks for leftovers of dead pods.
const reconcileEvery = 20 * time.Second

// lockWait is how long a new agent waits for the one before it to be gone.
const lockWait = 3 * time.Second

// Options are what Run needs beside the config file.
type Options struct {
	Config api.AgentConfig
	// Version is the agent's own, for the API server's log.
	Version string
	// NodeName is the name of this node's Node.
	NodeName string
	// Shim is the path of the CNI plugin to install; empty installs none.
	Shim string
	// Intervals are api.DefaultIntervals, but for tests.
	Intervals api.Intervals
	Log       logr.Logger
}

// Run is the agent. It returns nil when ctx ends, a *PodCIDRError when the
// node has no podCIDR that it could use, and otherwise what went wrong.
// Nothing on the node is undone when it returns: pods and node go on talking,
// and the next agent takes over.
func Run(ctx context.Context, o Options) error {
	unlock, err := lock(ctx, filepath.Join(RunDir, "agent.lock"), lockWait)
	if err != nil {
		return err
	}
	defer unlock()
	last := lastError(wire.LastErrorPath(o.Config.CNISocket))
	err = run(ctx, o, last)
	if err == nil {
		return nil
	}
	if werr := last.write(err); werr != nil {
		o.Log.Error(werr, "writing the reason for the CNI plugin")
	}
	if podCIDR := (*PodCIDRError)(nil); errors.As(err, &podCIDR) {
		// The node can't serve for good: the runtime must see that.
		if rerr := conflist.Remove(conflist.DefaultPath); rerr != nil {
			o.Log.Error(rerr, "removing the CNI network configuration")
		}
	}
	return err
}

func run(ctx context.Context, o Options, last lastError) error {
	client, source, err := newSource(o)
	if err != nil {
		return err
	}
	l := newLoop(o, source)
	l.kube = client
	l.advice = newAdviser(client, o.NodeName, o.Log.WithName("podcidr"))
	if k, ok := source.(*inputs.Kubernetes); ok {
		l.metrics.follows(k)
	}
	if client != nil {
		l.metrics.asks(client)
	}
	// Before anything that needs the network: the node may have none until this is done.
	l.uplink = openUplink(o, client, l.metrics)
	l.uplink.resume(ctx)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { l.uplink.yieldLoop(ctx); return nil })
	g.Go(func() error { return source.Run(ctx) })
	g.Go(func() error {
		return serveHTTP(ctx, o.Config, l.ready, func() api.AgentState { return l.tell(o.Version) }, l.metrics)
	})
	g.Go(func() error { newPolicyTeller(l).run(ctx); return nil })
	g.Go(func() error { l.advice.run(ctx); return nil })
	g.Go(func() error { return l.lastWords(ctx, l.start(ctx, o, last)) })
	return g.Wait()
}

// lastWords tells of a podCIDR that ends the agent, by an Event on the Node.
func (l *loop) lastWords(ctx context.Context, err error) error {
	if q := (*PodCIDRError)(nil); errors.As(err, &q) && l.kube != nil && ctx.Err() == nil {
		l.advice.warn(ctx, reasonPodCIDR, q.Reason)
	}
	return err
}

// newSource is the directory if the config names one, else the API server with
// the client to it.
func newSource(o Options) (*kube.Client, inputs.Source, error) {
	log := o.Log.WithName("inputs")
	if o.Config.ManifestsDir != "" {
		d, err := inputs.NewDirectory(o.Config.ManifestsDir, log)
		return nil, d, err
	}
	client, err := kube.New(o.Config, o.Version)
	if err != nil {
		return nil, nil, err
	}
	return client, inputs.NewKubernetes(client, o.NodeName, inputs.LastKnownPath, o.Config.EnableBridgingMode, log), nil
}

// start brings the node up step by step and serves it until ctx ends. Each step
// that waits says in last-error what it waits for, which is what the CNI plugin
// then answers.
func (l *loop) start(ctx context.Context, o Options, last lastError) error {
	if err := l.waitPodCIDR(ctx, last); err != nil || ctx.Err() != nil {
		return err
	}
	if err := l.checkTransport(); err != nil {
		return err
	}
	db, err := l.connectOVSDB(ctx, last)
	if err != nil || ctx.Err() != nil {
		return err
	}
	defer db.Close()
	l.db, l.uplink.waits = db, func() bool { return l.waits(db) }
	l.uplink.attach(ctx, l.transport.Name)
	l.looked = time.Time{} // addresses may have moved
	if err := l.findTransport(); err != nil {
		return err
	}
	// The loop outlives ctx: CNI requests that run when the agent is told to
	// stop are finished, and need it.
	loopCtx, stopLoop := context.WithCancel(context.WithoutCancel(ctx))
	var loops sync.WaitGroup
	loops.Go(func() { l.run(loopCtx) })
	loops.Go(func() { l.uplink.keep(loopCtx) })
	err = l.serveNode(ctx, &loops, o, last)
	stopLoop()
	loops.Wait()
	return err
}

// serveNode waits for the node to be as desired, then answers CNI requests.
func (l *loop) serveNode(ctx context.Context, loops *sync.WaitGroup, o Options, last lastError) error {
	if !l.waitFirstRound(ctx, last) {
		return nil
	}
	p, err := l.newPods(o)
	if err != nil {
		return err
	}
	if err := p.reconcile(ctx); err != nil {
		// Not fatal: what could not be taken back is tried again.
		o.Log.Error(err, "some leftovers of dead pods could not be taken back yet")
	}
	if err := last.clear(); err != nil {
		return err
	}
	loops.Go(func() { p.reconcileLoop(ctx) })
	loops.Go(func() { p.reaper.run(ctx, &p.busy, p.log) })
	if o.Config.EnableBridgingMode && o.Config.IPAM.ConflictProbeTimeout > 0 {
		loops.Go(func() { p.probeLoop(ctx) })
	}
	return p.serve(ctx, o)
}

// waitPodCIDR waits until the node has a podCIDR that it can use: as long as the
// config allows, which begins when the source has told of the Nodes. With
// enableBridgingMode the agent then goes on without, and serves bridged pods alone.
func (l *loop) waitPodCIDR(ctx context.Context, last lastError) error {
	var deadline <-chan time.Time
	overdue := false
	for {
		snapshot := l.source.Snapshot()
		fatal, err := l.usable(snapshot)
		if fatal != nil {
			return fatal
		}
		if err = l.advice.explain(err, snapshot); err == nil {
			l.log.Info("podCIDRs of this node", "node", l.nodeName, "podCIDRs", l.own.PodCIDRs)
			l.advice.speakUp()
			return nil
		}
		if overdue && l.bridgeOnly(snapshot) {
			l.log.Error(err, "no routed pod can be added; bridged pods are served without a podCIDR")
			return nil
		}
		if !snapshot.Unread && !snapshot.Kept && deadline == nil {
			deadline = time.After(l.cfg.PodCIDRWait)
		}
		before := l.state.Swap(&state{notReady: err, snapshot: snapshot})
		if !snapshot.Unread || snapshot.Trouble != nil { // else it has only just been asked
			l.tellChange("not ready, waiting for a podCIDR (podCIDRWait)", before.notReady, err)
		}
		if werr := last.write(err); werr != nil {
			return werr
		}
		select {
		case <-ctx.Done():
			return nil
		case <-l.source.Changed():
		case <-l.advice.changed:
		case <-deadline:
			if !l.cfg.EnableBridgingMode {
				return &PodCIDRError{Reason: l.advice.now(ctx, err, snapshot), Waited: l.cfg.PodCIDRWait}
			}
			l.advice.speakUp()
			overdue = true
		}
	}
}

// bridgeOnly takes the own Node without podCIDRs, if there are none in force, for a node
// that serves bridged pods. It returns false where that can't be done.
func (l *loop) bridgeOnly(s *inputs.Snapshot) bool {
	own, found := s.Nodes[l.nodeName]
	if !l.cfg.EnableBridgingMode || !found || len(l.own.PodCIDRs) > 0 {
		return false
	}
	own.PodCIDRs = nil
	l.own = own
	return l.findTransport() == nil
}

// usable takes the own Node and finds the way to other nodes. fatal is an error
// that waiting does not mend.
func (l *loop) usable(s *inputs.Snapshot) (fatal, err error) {
	if err := l.takeOwn(s); err != nil {
		return nil, err
	}
	if err := l.findTransport(); err != nil {
		return err, nil
	}
	return nil, takesFromNode(l.own, l.transport, l.needed)
}

// checkTransport refuses what would cut the node off or cannot carry pods.
func (l *loop) checkTransport() error {
	l.log.Info("transport interface", "interface", l.transport.Name, "mtu", l.transport.MTU, "address", endpoint(l.transport, l.own))
	if lacksServices(l.cfg, l.own.PodCIDRs) {
		l.log.Info("config", "warning", "serviceCIDRv6 is not set, and this cluster's pods have IPv6: if its Services have, too, "+
			"bridged pods do not reach them. Set it to the range of kube-apiserver's --service-cluster-ip-range")
	}
	local := endpoint(l.transport, l.own)
	for _, p := range l.own.PodCIDRs {
		if mtu := podMTU(l.cfg, l.transport.MTU, local); p.Addr().Is6() && mtu < 1280 {
			return fmt.Errorf("pods would get an MTU of %d, and IPv6 needs 1280 (RFC 8200): raise the MTU of %s or set defaultMTU",
				mtu, l.transport.Name)
		}
	}
	if l.cfg.TunnelType == api.TunnelGRE && tunnels(l.cfg) && local.Is6() {
		return fmt.Errorf("tunnelType gre needs IPv4 between nodes, and this node's address is %s: use geneve or vxlan",
			local)
	}
	return nil
}

// connectOVSDB waits for ovsdb-server, for ever: it may well start after the
// agent. The error is one of writing last-error; without error and with ctx
// ended there is no connection.
func (l *loop) connectOVSDB(ctx context.Context, last lastError) (*ovsdb.DB, error) {
	endpoint := "unix:" + filepath.Join(l.cfg.OVSRunDir, "db.sock")
	told := false
	for {
		db, err := ovsdb.Connect(ctx, endpoint, l.log.WithName("ovsdb"))
		if err == nil {
			return db, nil
		}
		if !told {
			told = true
			err = fmt.Errorf("waiting for Open vSwitch: %w. Does ovsdb-server run on this node? Where the pod fairlead-ovs runs it, that pod's log says "+
				"why not", err)
			l.log.Error(err, "not ready")
			l.state.Store(&state{notReady: err, snapshot: l.source.Snapshot()})
			if err := last.write(err); err != nil {
				return nil, err
			}
		}
		select {
		case <-ctx.Done():
			return nil, nil
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// waitFirstRound returns true when the node is as desired, false when ctx ends
// before. What holds it up goes to last-error.
func (l *loop) waitFirstRound(ctx context.Context, last lastError) bool {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-l.firstOK:
			return true
		case <-tick.C:
			if err := l.ready(); err != nil {
				if err := last.write(err); err != nil {
					l.log.Error(err, "writing the reason for the CNI plugin")
				}
			}
		}
	}
}

func (l *loop) newPods(o Options) (*pods, error) {
	bootID, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("reading the boot ID: %w", err)
	}
	p := &pods{loop: l, bootID: strings.TrimSpace(string(bootID)), log: o.Log.WithName("cni"), metrics: l.metrics,
		reaper: newReaper(l.db, l.cfg.OVSBridge),
		// A pod's TCP is silent on the userspace datapath otherwise: it
		// forwards frames without the checksum that the kernel left out.
		txOff: o.Config.DisableTXChecksumOffload || o.Config.OVSDatapathType == api.DatapathNetdev}
	if p.leases, err = hostlocal.Open(hostlocal.DefaultDir, p.bootID); err != nil {
		return nil, err
	}
	return p, p.newBridged(o)
}

func (p *pods) reconcileLoop(ctx context.Context) {
	tick := time.NewTicker(reconcileEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-p.bridged.witness.wake:
		}
		if err := p.reconcile(ctx); err != nil && ctx.Err() == nil {
			p.log.Error(err, "taking back leftovers of dead pods")
		}
	}
}

// lock makes sure that one agent works on the node. It waits a little for an
// agent on its way out: one that was killed holds the lock until its last
// thread, or a child of it that is about to start another program, is gone.
func lock(ctx context.Context, path string, wait time.Duration) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(wait); syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil; {
		if ctx.Err() != nil || time.Now().After(deadline) {
			f.Close()
			return nil, fmt.Errorf("another fairlead-agent works on this node (%s is locked): stop it first", path)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return func() { f.Close() }, nil
}
