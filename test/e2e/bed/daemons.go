package bed

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-cni/fairlead/test/lab/host"
)

// Daemon is a program that a node runs beside its pods.
type Daemon string

// The daemons of a node.
const (
	Runtime   Daemon = "runtime" // containerd or CRI-O
	Kubelet   Daemon = "kubelet"
	KubeProxy Daemon = "kube-proxy"
)

// Daemons are all daemons of a node.
func Daemons() []Daemon { return []Daemon{Runtime, Kubelet, KubeProxy} }

func (b *Bed) daemon(node string, d Daemon) host.Process {
	return host.Process{Host: b.Host(node), Name: string(d)}
}

// Log is the path of the output of a daemon and its predecessors.
func (b *Bed) Log(node string, d Daemon) string { return b.daemon(node, d).Log() }

// Kill stops a daemon with SIGKILL. It is down until Start.
func (b *Bed) Kill(ctx context.Context, node string, d Daemon) error {
	return b.end(ctx, node, d, unix.SIGKILL)
}

// Stop stops a daemon with SIGTERM. It is down until Start.
func (b *Bed) Stop(ctx context.Context, node string, d Daemon) error {
	return b.end(ctx, node, d, unix.SIGTERM)
}

func (b *Bed) end(ctx context.Context, node string, d Daemon, sig unix.Signal) error {
	if err := b.check(node, d); err != nil {
		return err
	}
	return b.daemon(node, d).End(ctx, sig)
}

// check returns an error for unknown names.
func (b *Bed) check(node string, d Daemon) error {
	if !slices.Contains(Daemons(), d) {
		return fmt.Errorf("%q is none of %v", d, Daemons())
	}
	_, _, err := b.node(node)
	return err
}

// Start starts a daemon that is down. For the runtime and kubelet it waits until they serve: kubelet exits at startup
// if the runtime does not answer.
func (b *Bed) Start(ctx context.Context, node string, d Daemon) error {
	if err := b.check(node, d); err != nil {
		return err
	}
	switch d {
	case Runtime:
		return b.runtime().start(ctx, node)
	case Kubelet:
		if err := b.startKubelet(node); err != nil {
			return err
		}
		return b.awaitServing(ctx, node, Kubelet, Tool, "get", kubeletHealth)
	default:
		return b.StartKubeProxy(node, b.spec.KubeProxy)
	}
}

// StartKubeProxy starts a node's kube-proxy in a mode, Nftables or IPTables.
func (b *Bed) StartKubeProxy(node, mode string) error {
	if mode == NoKubeProxy {
		mode = Nftables
	}
	return b.Plane().StartKubeProxy(b.daemon(node, KubeProxy), mode)
}

// awaitServing waits until a probe of the daemon, a program on its node, succeeds.
func (b *Bed) awaitServing(ctx context.Context, node string, d Daemon, probe ...string) error {
	daemon := b.daemon(node, d)
	ctx, cancel := context.WithTimeout(ctx, servingTimeout)
	defer cancel()
	for {
		_, err := b.NodeExec(ctx, node, probe...)
		if err == nil {
			return nil
		}
		if daemon.PID() == 0 || ctx.Err() != nil {
			return fmt.Errorf("%s on %s does not serve: %w\nits last log lines:\n%s", d, node, err, daemon.Tail(8))
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// servingTimeout is the time limit for a daemon to serve.
const servingTimeout = 3 * time.Minute

const (
	kubeletConf       = "/etc/kubernetes/kubelet.yaml"
	kubeletKubeconfig = "/etc/kubernetes/kubelet.kubeconfig"
	clusterCA         = "/etc/kubernetes/ca.crt"
	kubeletHealth     = "http://127.0.0.1:10248/healthz"
)

func (b *Bed) startKubelet(node string) error {
	h, n, err := b.node(node)
	if err != nil {
		return err
	}
	if err := b.writeKubeletFiles(h); err != nil {
		return fmt.Errorf("setting up kubelet of %s: %w", node, err)
	}
	var addrs []string
	for _, a := range b.Underlay().NodeAddrs(n) {
		addrs = append(addrs, a.Addr().String())
	}
	return b.daemon(node, Kubelet).Start(b.spec.Kube, "kubelet", "--config="+kubeletConf,
		"--kubeconfig="+kubeletKubeconfig, "--hostname-override="+node, "--node-ip="+strings.Join(addrs, ","))
}

func (b *Bed) writeKubeletFiles(h host.Host) error {
	p := b.Plane()
	kubeconfig, err := p.KubeletKubeconfig(h.Name)
	if err != nil {
		return err
	}
	ca, err := p.CA()
	if err != nil {
		return err
	}
	config, err := yaml.Marshal(b.kubeletConfig())
	if err != nil {
		return err
	}
	for file, data := range map[string][]byte{kubeletKubeconfig: kubeconfig, clusterCA: ca, kubeletConf: config} {
		if err := os.WriteFile(h.Private(file), data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// ClusterDNS is the tenth address of each Service range, as in kubeadm. Nothing listens there unless a test starts a
// server.
func (b *Bed) ClusterDNS() []string {
	var out []string
	for _, cidr := range b.spec.IPFamily.ServiceCIDRs() {
		addr := cidr.Addr()
		for range 10 {
			addr = addr.Next()
		}
		out = append(out, addr.String())
	}
	return out
}

// kubeletConfig is a KubeletConfiguration (kubelet.config.k8s.io/v1beta1).
func (b *Bed) kubeletConfig() map[string]any {
	return map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"containerRuntimeEndpoint": "unix://" + b.runtime().socket(),
		// containerd 1.6 does not report its cgroup driver to kubelet; the other runtimes do.
		"cgroupDriver": "cgroupfs",
		// Since 1.35 kubelet refuses cgroup v1 by default; with v2 the setting has no effect.
		"failCgroupV1":           false,
		"enforceNodeAllocatable": []string{},
		"failSwapOn":             false,
		"authentication": map[string]any{
			"x509":      map[string]any{"clientCAFile": clusterCA},
			"anonymous": map[string]any{"enabled": false}, "webhook": map[string]any{"enabled": false}},
		"authorization": map[string]any{"mode": "AlwaysAllow"},
		"clusterDNS":    b.ClusterDNS(), "clusterDomain": "cluster.local",
		"resolvConf": "", // the machine's name servers are not reachable from here
		// The bed's disk is the machine's memory, and its pods are small: disable eviction and image garbage
		// collection.
		"evictionHard": map[string]any{
			"memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
		"imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99,
		"nodeStatusUpdateFrequency": "5s",
		// Shorter than the default: many tests wait for it.
		"syncFrequency": "10s", "fileCheckFrequency": "5s",
	}
}
