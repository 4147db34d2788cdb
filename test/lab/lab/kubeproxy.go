package lab

import (
	"context"
	"fmt"
	"os"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/test/lab/host"
)

// Files of a node's kube-proxy.
const (
	kubeProxyKubeconfig = "/run/lab/kube-proxy.kubeconfig"
	kubeProxyConfig     = "/run/lab/kube-proxy.yaml"
)

// KubeProxy is a node's kube-proxy.
func (l *Lab) KubeProxy(node string) (host.Process, error) {
	h, _, err := l.node(node)
	if err != nil {
		return host.Process{}, err
	}
	_, err = l.Plane()
	return host.Process{Host: h, Name: "kube-proxy"}, err
}

// KubeProxyStart starts a node's kube-proxy, unless the lab was made without.
func (l *Lab) KubeProxyStart(node string) error {
	proxy, err := l.KubeProxy(node)
	if err != nil || l.spec.KubeProxy == "none" {
		return err
	}
	if err := l.writeKubeProxyConfig(proxy.Host); err != nil {
		return fmt.Errorf("setting up kube-proxy of %s: %w", node, err)
	}
	return proxy.Start(l.spec.Kube, "kube-proxy", "--config="+kubeProxyConfig, "--hostname-override="+node)
}

// KubeProxyStop ends a node's kube-proxy with SIGTERM. What it told the kernel stays.
func (l *Lab) KubeProxyStop(ctx context.Context, node string) error {
	proxy, err := l.KubeProxy(node)
	if err != nil {
		return err
	}
	return proxy.End(ctx, unix.SIGTERM)
}

func (l *Lab) writeKubeProxyConfig(h host.Host) error {
	p, err := l.Plane()
	if err != nil {
		return err
	}
	kubeconfig, err := p.KubeProxyKubeconfig()
	if err != nil {
		return err
	}
	if err := os.WriteFile(h.Private(kubeProxyKubeconfig), kubeconfig, 0o600); err != nil {
		return err
	}
	clusterCIDR, err := p.ClusterCIDR()
	if err != nil {
		return err
	}
	config, err := yaml.Marshal(map[string]any{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
		"mode":             l.spec.KubeProxy,
		"clientConnection": map[string]any{"kubeconfig": kubeProxyKubeconfig},
		"clusterCIDR":      clusterCIDR,
		"detectLocalMode":  "ClusterCIDR",
		// 0 leaves the machine's settings alone: these are not of a network namespace.
		"conntrack": map[string]any{"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
	})
	if err != nil {
		return err
	}
	return os.WriteFile(h.Private(kubeProxyConfig), config, 0o644)
}
