package bed

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/test/lab/host"
)

// private are a node's directories in addition to those of every host: a runtime's layers cannot be on the overlay of
// /var.
var private = [...]string{
	"/etc/kubernetes", "/etc/containerd", "/var/lib/containerd", "/etc/containers", "/etc/crio", "/var/lib/containers",
	"/var/lib/kubelet", "/var/log/pods",
}

// makeNode creates a node with an empty disk, starts its runtime and imports images.
func (b *Bed) makeNode(ctx context.Context, name string, images []string) error {
	if err := b.boot(ctx, name); err != nil {
		return err
	}
	return b.importOn(ctx, name, images...)
}

// boot boots a node, whose disk may already exist, and starts its runtime.
func (b *Bed) boot(ctx context.Context, name string) error {
	h, n, err := b.node(name)
	if err != nil {
		return err
	}
	var binds []host.Bind
	for _, dir := range private {
		if err := os.MkdirAll(h.Private(dir), 0o755); err != nil {
			return err
		}
		binds = append(binds, host.Bind{Source: h.Private(dir), Target: dir})
	}
	if _, err := host.Create(b.path("hosts"), name, binds...); err != nil {
		return err
	}
	for _, dir := range []string{"/run/lab", "/run/lock", "/run/netns", "/run/containerd"} {
		if err := os.MkdirAll(h.Private(dir), 0o755); err != nil {
			return err
		}
	}
	net := b.Underlay()
	if err := net.PlugNode(ctx, h, n); err != nil {
		return err
	}
	if err := net.PrepareNode(ctx, h); err != nil {
		return err
	}
	if err := net.AddressNode(h, n); err != nil {
		return err
	}
	if err := b.installTool(h); err != nil {
		return err
	}
	if err := installPlugins(h); err != nil {
		return err
	}
	if err := h.StartInit(Tool); err != nil {
		return err
	}
	return b.runtime().start(ctx, name)
}

// Tool is the path of e2e-tool on every host of a bed.
const Tool = toolDir + "/" + toolName

const toolDir = "/opt/bed"

// installTool copies e2e-tool to the host.
func (b *Bed) installTool(h host.Host) error {
	tool, err := os.ReadFile(b.spec.Tool)
	if err != nil {
		return err
	}
	return h.Do(func() error {
		if err := os.MkdirAll(toolDir, 0o755); err != nil {
			return err
		}
		return os.WriteFile(Tool, tool, 0o755)
	})
}

// installPlugins copies the reference CNI plugins to a node's disk, as the package kubernetes-cni does.
func installPlugins(h host.Host) error {
	return h.Do(func() error {
		if err := os.MkdirAll("/opt/cni/bin", 0o755); err != nil {
			return err
		}
		plugins, err := filepath.Glob("/usr/lib/cni/*")
		if err != nil {
			return err
		}
		for _, p := range plugins {
			if err := copyMissing(p, filepath.Join("/opt/cni/bin", filepath.Base(p))); err != nil {
				return err
			}
		}
		return nil
	})
}

// copyMissing copies a program unless it exists: a reboot keeps the disk.
func copyMissing(from, to string) error {
	if _, err := os.Stat(to); err == nil {
		return nil
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o755)
}

// joinNode starts the daemons that make the machine a node of the cluster.
func (b *Bed) joinNode(name string) error {
	if err := b.startKubelet(name); err != nil {
		return err
	}
	if b.spec.KubeProxy == NoKubeProxy {
		return nil
	}
	return b.StartKubeProxy(name, b.spec.KubeProxy)
}

// Crash is a power failure of a node: all its processes end, its NIC is gone, and only its disk is kept.
func (b *Bed) Crash(ctx context.Context, name string) error {
	h, n, err := b.node(name)
	if err != nil {
		return err
	}
	killCtx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := host.Kill(killCtx, h); err != nil {
		return err
	}
	if err := b.Underlay().UnplugNode(ctx, n); err != nil {
		return err
	}
	return h.ShutDown()
}

// Boot is the next boot of a node after Crash: another boot ID, an empty /run; the runtime, kubelet and, unless the bed
// has none, kube-proxy are started.
func (b *Bed) Boot(ctx context.Context, name string) error {
	if err := b.boot(ctx, name); err != nil {
		return fmt.Errorf("booting %s: %w", name, err)
	}
	return b.joinNode(name)
}

// Import imports an archive of images on all nodes.
func (b *Bed) Import(ctx context.Context, archive string) error {
	for _, name := range b.Nodes() {
		if err := b.importOn(ctx, name, archive); err != nil {
			return err
		}
	}
	return nil
}

func (b *Bed) importOn(ctx context.Context, name string, archives ...string) error {
	for _, archive := range archives {
		f, err := os.Open(archive)
		if err != nil {
			return err
		}
		cmd := b.runtime().load(ctx)
		cmd.Stdin = f
		err = b.run(cmd, name)
		f.Close()
		if err != nil {
			return fmt.Errorf("importing %s: %w", archive, err)
		}
	}
	return nil
}

// NodeExec runs argv on a node, or another host of the bed, and returns both output streams. An error contains them.
func (b *Bed) NodeExec(ctx context.Context, name string, argv ...string) (string, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	return b.output(cmd, name)
}

func (b *Bed) run(cmd *exec.Cmd, name string) error {
	_, err := b.output(cmd, name)
	return err
}

// output runs cmd on a host.
func (b *Bed) output(cmd *exec.Cmd, name string) (out string, err error) {
	var text []byte
	cmd.Env = host.Env()
	err = b.Host(name).Do(func() error {
		var err error
		text, err = cmd.CombinedOutput()
		return err
	})
	if err != nil {
		err = fmt.Errorf("%s: %v: %w\n%s", name, cmd.Args, err, text)
	}
	return string(text), err
}

// awaitNodes waits until all kubelets have registered.
func (b *Bed) awaitNodes(ctx context.Context) error {
	missing := map[string]bool{}
	err := b.await(ctx, registerTimeout, func(nodes []corev1.Node) error {
		for _, name := range b.Nodes() {
			missing[name] = true
		}
		for _, n := range nodes {
			delete(missing, n.Name)
		}
		if len(missing) > 0 {
			return fmt.Errorf("kubelet has not registered %v", slices.Sorted(maps.Keys(missing)))
		}
		return nil
	})
	for name := range missing {
		err = fmt.Errorf("%w\nlast log lines of kubelet on %s:\n%s", err, name, b.daemon(name, Kubelet).Tail(12))
	}
	return err
}

// registerTimeout is the time limit for kubelets to register. In User-Mode Linux it takes a minute.
const registerTimeout = 5 * time.Minute

// WaitReady waits until all Nodes of the cluster are Ready, or ctx ends.
func (b *Bed) WaitReady(ctx context.Context) error {
	return b.await(ctx, time.Hour, func(nodes []corev1.Node) error {
		for _, n := range nodes {
			for _, c := range n.Status.Conditions {
				if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
					return fmt.Errorf("%s is not Ready: %s", n.Name, c.Message)
				}
			}
		}
		return nil
	})
}

func (b *Bed) await(ctx context.Context, limit time.Duration, check func([]corev1.Node) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	client, err := b.Client()
	if err != nil {
		return err
	}
	for {
		nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err == nil {
			err = check(nodes.Items)
		}
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}
