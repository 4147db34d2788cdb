package lab

import (
	"context"

	"golang.org/x/sys/unix"

	"github.com/fairlead-cni/fairlead/test/lab/host"
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

// KubeProxyStart starts a node's kube-proxy, unless the lab was created without.
func (l *Lab) KubeProxyStart(node string) error {
	proxy, err := l.KubeProxy(node)
	if err != nil || l.spec.KubeProxy == "none" {
		return err
	}
	p, err := l.Plane()
	if err != nil {
		return err
	}
	return p.StartKubeProxy(proxy, l.spec.KubeProxy)
}

// KubeProxyStop stops a node's kube-proxy with SIGTERM. Its rules stay in the kernel.
func (l *Lab) KubeProxyStop(ctx context.Context, node string) error {
	proxy, err := l.KubeProxy(node)
	if err != nil {
		return err
	}
	return proxy.End(ctx, unix.SIGTERM)
}
