package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/build/ovs"
	"github.com/fairlead-cni/fairlead/test/lab/host"
	"github.com/fairlead-cni/fairlead/test/lab/manifest"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
	"github.com/fairlead-cni/fairlead/test/lab/vswitch"
)

// Up creates a lab and waits until its agents are ready. If it fails, or ctx ends, nothing is left behind.
func Up(ctx context.Context, o Options) (*Lab, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	o.settle()
	config, err := mergeConfig(agentConfigFor(o), o.Config)
	if err != nil {
		return nil, fmt.Errorf("the agents' config: %w", err)
	}
	if err := preflight(o); err != nil {
		return nil, err
	}
	kube, err := kubeProgram(ctx, o)
	if err != nil {
		return nil, err
	}
	unlock, err := claim(o.Dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	l := &Lab{dir: o.Dir, spec: spec{Created: time.Now(), Nodes: o.Nodes, Datapath: o.Datapath, IPFamily: o.IPFamily,
		Mode: o.Mode, Uplink: o.Uplink, Subnets: o.Subnets, RoutePods: o.RoutePods,
		BinDir: o.BinDir, NoAgent: o.NoAgent, NoGuard: o.NoGuard || o.Datapath == vswitch.Netdev, APIPort: apiPort(config),
		ProductIntervals: o.ProductIntervals, Cluster: o.Cluster, Kube: kube, KubeProxy: o.KubeProxy}}
	err = l.build(ctx, o, config)
	if err == nil {
		err = l.awaitAgents(ctx, o)
		if err != nil && o.Keep && ctx.Err() == nil {
			return l, fmt.Errorf("%w\nThe lab was kept for inspection; remove it with lab down", err)
		}
	}
	if err == nil {
		return l, nil
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("interrupted: %w", err)
	}
	o.Progress("cleaning up")
	return nil, errors.Join(err, Down(context.WithoutCancel(ctx), o.Dir, nil))
}

// claim creates the lab's directory and keeps others from creating the same one until unlock is called.
func claim(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return nil, fmt.Errorf("another lab is being created in %s: wait for it, or use another --dir", dir)
	}
	mounted, err := host.IsPlace(dir)
	if err != nil {
		return nil, err
	}
	if mounted {
		return nil, fmt.Errorf("a lab is up in %s: lab down removes it, another --dir creates a second one", dir)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	if len(entries) > 0 {
		return nil, fmt.Errorf("%s is not empty: a lab needs its own directory", dir)
	}
	return func() { f.Close() }, nil
}

// build creates everything up to started agents.
func (l *Lab) build(ctx context.Context, o Options, config map[string]any) error {
	if err := l.makeDirs(); err != nil {
		return fmt.Errorf("making the lab's directory: %w", err)
	}
	if err := l.makeUnderlay(ctx, o); err != nil {
		return err
	}
	if o.Cluster == Kube {
		if err := l.makeControlPlane(ctx, o); err != nil {
			return err
		}
	}
	for n := 1; n <= o.Nodes; n++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		o.Progress(fmt.Sprintf("%s: namespaces and Open vSwitch", underlay.NodeName(n)))
		if err := l.makeNode(ctx, n, config); err != nil {
			return err
		}
	}
	// Not earlier: everything that reads it expects a lab with all its nodes.
	if err := l.save(); err != nil {
		return err
	}
	if o.Cluster == Kube {
		if err := l.joinNodes(ctx, o); err != nil {
			return err
		}
	}
	o.Progress("pod runner")
	if err := l.RunnerStart(ctx); err != nil {
		return err
	}
	if o.NoAgent {
		return nil
	}
	o.Progress("agents")
	for _, node := range l.Nodes() {
		if err := l.AgentStart(ctx, node); err != nil {
			return err
		}
	}
	return nil
}

func (l *Lab) makeDirs() error {
	if err := host.MakePlace(l.dir); err != nil {
		return err
	}
	for _, dir := range []string{"manifests", "allocations", "pods", "tmp"} {
		if err := os.Mkdir(l.path(dir), 0o755); err != nil {
			return err
		}
	}
	return nil
}

func (l *Lab) makeUnderlay(ctx context.Context, o Options) error {
	if o.Mode == underlay.Bridge {
		o.Progress(fmt.Sprintf("the hosts %s, %s and %s", underlay.Switch, underlay.Router, underlay.Outside))
	} else {
		o.Progress("underlay and the host " + underlay.Outside)
	}
	return l.underlay().Make(ctx)
}

func (l *Lab) makeNode(ctx context.Context, n int, config map[string]any) error {
	if l.spec.Cluster == Directory {
		if _, err := l.Manifests().Apply([]manifest.Object{nodeManifest(l.underlay(), n)}); err != nil {
			return err
		}
	}
	h := host.At(l.path("hosts"), underlay.NodeName(n))
	if err := writeFiles(h, config); err != nil {
		return fmt.Errorf("setting up %s: %w", h.Name, err)
	}
	if l.spec.RoutePods {
		if err := l.underlay().RoutePods(n); err != nil {
			return err
		}
	}
	return l.boot(ctx, n)
}

// boot starts the machine of a node, whose files exist, up to Open vSwitch and its addresses. The boot unit beside Open
// vSwitch (build/ovs) keeps the NIC with the host.
func (l *Lab) boot(ctx context.Context, n int) error {
	var binds []host.Bind
	if l.spec.Cluster == Directory {
		binds = append(binds, host.Bind{Source: l.path("manifests"), Target: manifestsDir, ReadOnly: true})
		if l.spec.Mode == underlay.Bridge { // O_EXCL works among nodes that share the directory
			binds = append(binds, host.Bind{Source: l.path("allocations"), Target: allocationsDir})
		}
	}
	h, err := host.Create(l.path("hosts"), underlay.NodeName(n), binds...)
	if err != nil {
		return err
	}
	for _, dir := range []string{"/run/lab", "/run/lock", "/run/netns"} {
		if err := os.MkdirAll(h.Private(dir), 0o755); err != nil {
			return fmt.Errorf("setting up %s: %w", h.Name, err)
		}
	}
	if err := l.underlay().PlugNode(ctx, h, n); err != nil {
		return err
	}
	if err := l.underlay().PrepareNode(ctx, h); err != nil {
		return err
	}
	if err := l.OVSStart(ctx, h.Name, OVSDB); err != nil {
		return err
	}
	if err := h.Do(func() error { return host.Run(exec.CommandContext(ctx, "sh", "-c", ovs.UplinkBoot)) }); err != nil {
		return fmt.Errorf("fairlead-uplink-boot on %s: %w", h.Name, err)
	}
	if err := l.OVSStart(ctx, h.Name); err != nil || l.underlay().OnBridge() {
		return err
	}
	return l.underlay().AddressNode(h, n)
}

// writeFiles writes the agent's config to the node, and this machine's reference CNI plugins.
func writeFiles(h host.Host, config map[string]any) error {
	data, err := yaml.Marshal(config)
	if err != nil {
		return err
	}
	for _, dir := range []string{"/etc/fairlead", "/opt/cni/bin", "/etc/cni/net.d"} {
		if err := os.MkdirAll(h.Private(dir), 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(h.Private(agentConf), data, 0o644); err != nil {
		return err
	}
	for _, dir := range []string{"/usr/lib/cni", "/usr/libexec/cni"} { // Debian's path, and others'
		plugins, err := filepath.Glob(dir + "/*")
		if err != nil {
			return err
		}
		for _, p := range plugins {
			if err := os.Symlink(p, filepath.Join(h.Private("/opt/cni/bin"), filepath.Base(p))); err != nil {
				return err
			}
		}
	}
	return nil
}

// awaitAgents waits for all agents concurrently.
func (l *Lab) awaitAgents(ctx context.Context, o Options) error {
	if o.NoAgent {
		return nil
	}
	o.Progress(fmt.Sprintf("waiting for the agents (at most %s)", o.ReadyTimeout))
	ctx, cancel := context.WithTimeout(ctx, o.ReadyTimeout)
	defer cancel()
	var g errgroup.Group
	for _, node := range l.Nodes() {
		g.Go(func() error {
			if err := l.WaitReady(ctx, node); err != nil {
				return fmt.Errorf("%w\n%s", err, l.logTail(node))
			}
			return nil
		})
	}
	return g.Wait()
}

// logTail is the end of the node's agent log.
func (l *Lab) logTail(node string) string {
	const lines = 15
	path, err := l.AgentLog(node)
	if err != nil {
		return ""
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return "and it has no log: " + err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(data)), "\n")
	return "its last log lines:\n  " + strings.Join(all[max(0, len(all)-lines):], "\n  ")
}
