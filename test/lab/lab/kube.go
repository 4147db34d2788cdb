package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-cni/fairlead/test/kubebin"
	"github.com/fairlead-cni/fairlead/test/lab/controlplane"
	"github.com/fairlead-cni/fairlead/test/lab/host"
	"github.com/fairlead-cni/fairlead/test/lab/kubelet"
	"github.com/fairlead-cni/fairlead/test/lab/runner"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

// kubeProgram returns the path of the program with all Kubernetes components, and builds it if needed. A lab without
// Kubernetes needs none.
func kubeProgram(ctx context.Context, o Options) (string, error) {
	if o.Cluster != Kube {
		return "", nil
	}
	r, w := io.Pipe()
	defer w.Close()
	go func() {
		for lines := bufio.NewScanner(r); lines.Scan(); {
			o.Progress(lines.Text())
		}
		_, _ = io.Copy(io.Discard, r) // the rest after a scanner error; the writer must not block
	}()
	return kubebin.Get(ctx, w)
}

// Plane is the control plane of a lab with Kubernetes.
func (l *Lab) Plane() (controlplane.Plane, error) {
	if l.spec.Cluster != Kube {
		return controlplane.Plane{}, fmt.Errorf("the lab in %s has no Kubernetes: lab up --cluster %s creates one that has",
			l.dir, Kube)
	}
	p := controlplane.Plane{Host: host.At(l.path("hosts"), underlay.ControlPlane), Program: l.spec.Kube,
		ServiceCIDRs: l.spec.IPFamily.ServiceCIDRs(), ClusterCIDRs: l.spec.IPFamily.ClusterCIDRs()}
	for _, a := range l.spec.IPFamily.ControlPlaneAddrs() {
		p.Addrs = append(p.Addrs, a.Addr())
	}
	return p, nil
}

// Client is a client of the Kubernetes API with the administrator's rights, usable from anywhere.
func (l *Lab) Client() (*kubernetes.Clientset, error) {
	p, err := l.Plane()
	if err != nil {
		return nil, err
	}
	l.clientMu.Lock()
	defer l.clientMu.Unlock()
	if l.client == nil {
		l.client, err = p.Client()
	}
	return l.client, err
}

// makeControlPlane creates the host ControlPlane and starts all components on it.
func (l *Lab) makeControlPlane(ctx context.Context, o Options) error {
	h, err := host.Create(l.path("hosts"), underlay.ControlPlane)
	if err != nil {
		return err
	}
	if err := l.underlay().PlugControlPlane(ctx, h); err != nil {
		return err
	}
	p, err := l.Plane()
	if err != nil {
		return err
	}
	set, err := controlplane.FlagsOfParts(o.Set, controlplane.Parts())
	if err != nil {
		return err
	}
	if err := p.Prepare(set); err != nil {
		return err
	}
	return p.StartAll(ctx, func(part controlplane.Part) {
		o.Progress(fmt.Sprintf("%s: %s", underlay.ControlPlane, part))
	})
}

// joinNodes registers the Nodes and writes the files to every node that its programs need to use the API.
func (l *Lab) joinNodes(ctx context.Context, o Options) error {
	o.Progress("nodes join the cluster")
	if err := l.RegisterNodes(ctx); err != nil {
		return err
	}
	if err := l.GiveAgentsAccess(ctx); err != nil {
		return err
	}
	for _, node := range l.Nodes() {
		if err := l.KubeProxyStart(node); err != nil {
			return err
		}
	}
	return l.awaitPodCIDRs(ctx)
}

// RegisterNodes creates the missing Nodes, as kubelets do when they start.
func (l *Lab) RegisterNodes(ctx context.Context) error {
	k, err := l.kubelet(logr.Discard())
	if err != nil {
		return err
	}
	for _, node := range l.Nodes() {
		if err := k.Register(ctx, node); err != nil {
			return err
		}
	}
	return nil
}

// podCIDRWait is how long lab up waits for podCIDRs before it starts agents, which wait themselves.
const podCIDRWait = 5 * time.Second

// awaitPodCIDRs waits for kube-controller-manager to assign podCIDRs. It is no error if it assigns none: that may be
// disabled, and agents report it.
func (l *Lab) awaitPodCIDRs(ctx context.Context) error {
	client, err := l.Client()
	if err != nil {
		return err
	}
	for limit := time.Now().Add(podCIDRWait); time.Now().Before(limit); {
		nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err == nil && !slices.ContainsFunc(nodes.Items, func(n corev1.Node) bool { return n.Spec.PodCIDR == "" }) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	return nil
}

func (l *Lab) kubelet(log logr.Logger) (*kubelet.Kubelet, error) {
	client, err := l.Client()
	if err != nil {
		return nil, err
	}
	return kubelet.New(client, l.addrsOf, log), nil
}

// addrsOf are the underlay addresses of a node, none for a name that is not a node.
func (l *Lab) addrsOf(node string) []netip.Addr {
	_, n, err := l.node(node)
	if err != nil {
		return nil
	}
	var out []netip.Addr
	for _, a := range l.underlay().NodeAddrs(n) {
		out = append(out, a.Addr())
	}
	return out
}

// podSource is the pod runner's source of Pods.
func (l *Lab) podSource(log logr.Logger) (runner.Pods, error) {
	if l.spec.Cluster != Kube {
		return runner.Directory{Manifests: l.Manifests(), Log: log}, nil
	}
	return l.kubelet(log)
}

// Files with which a node's agent connects to the API, in a directory of the node's own.
const (
	agentKubeconfig = "/etc/fairlead/kubeconfig"
	agentToken      = "/etc/fairlead/token"
)

// clusterObjects selects the manifest's custom resource definitions, and the agent's identity and permissions. The rest
// would be pods, which a lab does not run.
const clusterManifest, clusterObjects = "build/manifests/fairlead.yaml", "app.kubernetes.io/component in (crds, policy, rbac)"

// GiveAgentsAccess creates what agents need in the API: the custom resource definitions, and a ServiceAccount with
// permissions, for which it writes a token and a kubeconfig to every node. It is repeated when the cluster has lost all
// objects (controlplane.Plane.Wipe).
func (l *Lab) GiveAgentsAccess(ctx context.Context) error {
	if err := l.applyClusterManifests(ctx); err != nil {
		return err
	}
	token, err := l.agentToken(ctx)
	if err != nil {
		return fmt.Errorf("a token for the agents: %w", err)
	}
	kubeconfig, err := l.agentsKubeconfig()
	if err != nil {
		return err
	}
	for _, node := range l.Nodes() {
		h, _, err := l.node(node)
		if err != nil {
			return err
		}
		if err := os.WriteFile(h.Private(agentToken), []byte(token), 0o600); err != nil {
			return err
		}
		if err := os.WriteFile(h.Private(agentKubeconfig), kubeconfig, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// applyTimeout is the time limit of Fairlead's manifest.
const applyTimeout = 3 * time.Minute

// applyClusterManifests applies Fairlead's manifest, and retries if the API server does not answer: it may stall for
// longer than the client's timeout, as in a guest whose only CPU is busy with everything that has just started.
func (l *Lab) applyClusterManifests(ctx context.Context) error {
	path, err := kubebin.Find(clusterManifest)
	if err != nil {
		return err
	}
	manifest, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	client, err := l.Objects()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, applyTimeout)
	defer cancel()
	for {
		var unanswered *url.Error
		_, err := client.Apply(ctx, manifest, clusterObjects)
		switch {
		case err == nil:
			return nil
		case !errors.As(err, &unanswered) || ctx.Err() != nil:
			return fmt.Errorf("Fairlead's manifest: %w", err)
		}
	}
}

// Wipe deletes all objects of the cluster, and then acts as kubelets do: it registers the Nodes and gives agents new
// tokens. Sandboxes stay until the runner sees that their Pods are gone.
func (l *Lab) Wipe(ctx context.Context) error {
	p, err := l.Plane()
	if err != nil {
		return err
	}
	if err := p.Wipe(ctx); err != nil {
		return err
	}
	if err := l.RegisterNodes(ctx); err != nil {
		return err
	}
	if err := l.GiveAgentsAccess(ctx); err != nil {
		return err
	}
	return l.RestartKubeProxies(ctx)
}

// RestartKubeProxies restarts the kube-proxies that are running. When the API server's history has been replaced, their
// watches may receive nothing, and after several outages of the API server they back off for up to a minute.
func (l *Lab) RestartKubeProxies(ctx context.Context) error {
	for _, node := range l.Nodes() {
		proxy, err := l.KubeProxy(node)
		if err != nil {
			return err
		}
		if proxy.PID() == 0 {
			continue
		}
		if err := l.KubeProxyStop(ctx, node); err != nil {
			return err
		}
		if err := l.KubeProxyStart(node); err != nil {
			return err
		}
	}
	return nil
}
