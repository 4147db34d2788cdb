package cluster

import (
	"net/netip"
	"os"
	"path/filepath"
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
		for _, a := range addrs {
			if got, ok := netip.AddrFromSlice(a.IP); ok && got.Unmap() == want {
				found = true
			}
		}
		return err
	})
	return found, err
}
