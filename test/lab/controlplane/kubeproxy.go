package controlplane

import (
	"fmt"
	"os"

	"go.yaml.in/yaml/v3"

	"github.com/fairlead-cni/fairlead/test/lab/host"
)

// Files of a node's kube-proxy.
const (
	kubeProxyKubeconfig = "/run/lab/kube-proxy.kubeconfig"
	kubeProxyConfig     = "/run/lab/kube-proxy.yaml"
)

// StartKubeProxy starts kube-proxy on the host of a node, in mode nftables or iptables.
func (p Plane) StartKubeProxy(on host.Process, mode string) error {
	if err := p.writeKubeProxyConfig(on.Host, mode); err != nil {
		return fmt.Errorf("setting up kube-proxy of %s: %w", on.Host.Name, err)
	}
	return on.Start(p.Program, "kube-proxy", "--config="+kubeProxyConfig, "--hostname-override="+on.Host.Name)
}

func (p Plane) writeKubeProxyConfig(h host.Host, mode string) error {
	kubeconfig, err := os.ReadFile(p.file(kubeProxy + ".kubeconfig"))
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
	local := "ClusterCIDR"
	if clusterCIDR == "" { // another allocator assigns podCIDRs
		local = "NodeCIDR"
	}
	config, err := yaml.Marshal(map[string]any{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
		"mode":             mode,
		"clientConnection": map[string]any{"kubeconfig": kubeProxyKubeconfig},
		"clusterCIDR":      clusterCIDR,
		"detectLocalMode":  local,
		// 0 leaves the machine's settings unchanged: these are not per network namespace.
		"conntrack": map[string]any{"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
	})
	if err != nil {
		return err
	}
	return os.WriteFile(h.Private(kubeProxyConfig), config, 0o644)
}
