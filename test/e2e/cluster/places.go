package cluster

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-cni/fairlead/test/e2e/matrix"
)

// HostPlace is an end of a path on a host of the bed, with one of its addresses.
func (c *Cluster) HostPlace(t testing.TB, name string, addr netip.Prefix) matrix.Place {
	t.Helper()
	netns, err := ns.GetNS(filepath.Join(c.Host(name).Dir, "ns", "net"))
	Must(t, err)
	t.Cleanup(func() { netns.Close() })
	return matrix.Place{Name: name, NetNS: netns, Addr: addr.Addr()}
}

// PodPlace is an end of a path in a pod, with its address number n.
func (c *Cluster) PodPlace(t testing.TB, pod corev1.Pod, n int) matrix.Place {
	t.Helper()
	addr := netip.MustParseAddr(pod.Status.PodIPs[n].IP)
	for _, netns := range c.podNetNS(t, pod.Spec.NodeName) {
		found, err := has(netns, addr)
		Must(t, err)
		if found {
			return matrix.Place{Name: pod.Name, NetNS: netns, Addr: addr}
		}
	}
	t.Fatalf("no network namespace on %s has %s", pod.Spec.NodeName, addr)
	return matrix.Place{}
}

// podNetNS opens the network namespaces of a node's pods. They are entered from outside: the node has its own /proc.
func (c *Cluster) podNetNS(t testing.TB, node string) (all []ns.NetNS) {
	t.Helper()
	Must(t, c.Host(node).Do(func() error {
		const dir = "/run/netns"
		files, err := os.ReadDir(dir)
		for _, f := range files {
			netns, err := ns.GetNS(filepath.Join(dir, f.Name()))
			if err != nil {
				return err
			}
			t.Cleanup(func() { netns.Close() })
			all = append(all, netns)
		}
		return err
	}))
	return all
}

func has(netns ns.NetNS, want netip.Addr) (found bool, err error) {
	err = netns.Do(func(ns.NetNS) error {
		addrs, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
		if err != nil {
			return fmt.Errorf("reading the addresses of %s: %w", netns.Path(), err)
		}
		for _, a := range addrs {
			if got, ok := netip.AddrFromSlice(a.IP); ok && got.Unmap() == want {
				found = true
			}
		}
		return nil
	})
	return found, err
}

// PodOf is the name of the pod of one of Fairlead's DaemonSets on a node.
func (c *Cluster) PodOf(ctx context.Context, set, node string) (string, error) {
	out, err := c.Kubectl(ctx, "get", "pods", "-n", "kube-system", "-l", "app.kubernetes.io/name="+set,
		"--field-selector=spec.nodeName="+node, "-o", "jsonpath={.items[*].metadata.name}")
	if err == nil && len(strings.Fields(out)) != 1 {
		err = fmt.Errorf("%s on %s: pods %q, want one", set, node, out)
	}
	return strings.TrimSpace(out), err
}

// ReadyOn returns an error while the pod of one of Fairlead's DaemonSets on a node is not ready, or is the old one.
func (c *Cluster) ReadyOn(ctx context.Context, set, node, old string) error {
	pod, err := c.PodOf(ctx, set, node)
	if err != nil {
		return err
	}
	if pod == old {
		return fmt.Errorf("the old pod %s is there", old)
	}
	out, err := c.Kubectl(ctx, "get", "pod", "-n", "kube-system", pod,
		"-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
	if err == nil && out != "True" {
		err = fmt.Errorf("pod %s is not ready", pod)
	}
	return err
}
