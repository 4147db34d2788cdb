package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/fairlead-cni/fairlead/test/e2e/bed"
	"github.com/fairlead-cni/fairlead/test/e2e/install"
	"github.com/fairlead-cni/fairlead/test/kubebin"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
)

// Networks that the bed's nodes can have.
const (
	steer     = "steer"     // Fairlead in uplink.mode steer, without tunnels between nodes
	tunnel    = "tunnel"    // Fairlead in uplink.mode bridge, with tunnels
	reference = "reference" // the reference plugin bridge, to compare with
)

//go:embed dns.yaml
var dnsManifest string

//go:embed bridged.yaml
var bridgedManifest []byte

// bedOptions are the options of the bed.
type bedOptions struct {
	nodes          int
	network, proxy string
	family         string   // of nodes and pods
	bridged        bool     // the tests' pods
	values         []string // of the chart, beside those of the network
	keep           bool     // keep the bed at the end
}

// makeBed creates nodes with a network, the images of the tests' pods, and the cluster's DNS.
func (o bedOptions) makeBed(ctx context.Context, suite kubebin.Suite, coredns, tmp string) (*bed.Bed, error) {
	images := []string{filepath.Join(tmp, "images.tar")}
	if err := writeImages(ctx, suite, coredns, images[0]); err != nil {
		return nil, err
	}
	if o.network != reference {
		image, err := install.Image()
		if err != nil {
			return nil, err
		}
		images = append(images, image)
	}
	start := time.Now()
	say := func(step string) { fmt.Fprintf(os.Stderr, "%5.1f s  %s\n", time.Since(start).Seconds(), step) }
	b, err := bed.Up(ctx, bed.Options{Name: "conformance", Replace: true, Nodes: o.nodes, KubeProxy: o.proxy, Images: images,
		IPFamily: underlay.IPFamily(o.family), Progress: say})
	if err != nil {
		return nil, err
	}
	if err := o.prepare(ctx, b, say); err != nil {
		return nil, errors.Join(err, b.Down(context.WithoutCancel(ctx)))
	}
	return b, nil
}

// prepare installs the network on the bed's nodes, and the cluster's DNS.
func (o bedOptions) prepare(ctx context.Context, b *bed.Bed, say func(string)) error {
	say("network: " + o.network)
	if err := o.install(ctx, b); err != nil {
		return err
	}
	if err := b.WaitReady(ctx); err != nil {
		return err
	}
	if err := label(ctx, b); err != nil {
		return err
	}
	say("all nodes are Ready; DNS")
	if err := routeToPods(ctx, b); err != nil {
		return fmt.Errorf("routes from the API server to pods: %w", err)
	}
	addrs := b.ClusterDNS()
	manifest := strings.NewReplacer("FIRST_DNS", fmt.Sprintf("%q", addrs[0]),
		"ALL_DNS", `["`+strings.Join(addrs, `", "`)+`"]`).Replace(dnsManifest)
	if _, err := b.KubectlStdin(ctx, []byte(manifest), "apply", "-f", "-"); err != nil {
		return err
	}
	if _, err := b.Kubectl(ctx, "-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=2m"); err != nil {
		return err
	}
	say("DNS answers")
	if o.bridged {
		return bridge(ctx, b)
	}
	return nil
}

// bridge makes the pods of Namespaces created from now on bridged.
func bridge(ctx context.Context, b *bed.Bed) error {
	if _, err := b.KubectlStdin(ctx, bridgedManifest, "apply", "-f", "-"); err != nil {
		return err
	}
	inForce := func(ctx context.Context) (bool, error) {
		out, err := b.Kubectl(ctx, "create", "namespace", "tried", "--dry-run=server", "-o", "jsonpath={.metadata.annotations}")
		return strings.Contains(out, "tests,tests6"), err
	}
	return wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, time.Minute, true, inForce)
}

// label distributes nodes over three zones: the tests of traffic distribution need that many (-nodes 3), some of them
// two nodes in each (-nodes 6).
func label(ctx context.Context, b *bed.Bed) error {
	for i, node := range b.Nodes() {
		zone := fmt.Sprintf("%s=zone%d", corev1.LabelTopologyZone, 1+i%3)
		if _, err := b.Kubectl(ctx, "label", "node", node, zone); err != nil {
			return err
		}
	}
	return nil
}

func (o bedOptions) install(ctx context.Context, b *bed.Bed) error {
	values := o.values
	if o.proxy == bed.NoKubeProxy { // the address that kubelet sets in pods is unreachable
		plane := b.Underlay().Family.ControlPlaneAddrs()[0].Addr().String()
		values = append([]string{"kubeAPIServerOverride=" + net.JoinHostPort(plane, "6443")}, values...)
	}
	switch o.network {
	case steer:
		return install.Apply(ctx, b, append(install.Steer(), values...)...)
	case tunnel:
		return install.Apply(ctx, b, append(install.Bridge(), values...)...)
	}
	return b.BridgeCNI(ctx)
}

// routeToPods makes pods reachable from the API server, for tests that use its proxy: its host has no kubelet, and
// therefore no Fairlead.
func routeToPods(ctx context.Context, b *bed.Bed) error {
	client, err := b.Client()
	if err != nil {
		return err
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	return b.Host(underlay.ControlPlane).Do(func() error {
		for _, n := range nodes.Items {
			for _, cidr := range n.Spec.PodCIDRs {
				_, dst, err := net.ParseCIDR(cidr)
				if err != nil {
					return err
				}
				i := slices.IndexFunc(n.Status.Addresses, func(a corev1.NodeAddress) bool {
					ip := net.ParseIP(a.Address)
					return a.Type == corev1.NodeInternalIP && (ip.To4() == nil) == (dst.IP.To4() == nil)
				})
				if i < 0 {
					return fmt.Errorf("node %s has %s, and no address of that family", n.Name, cidr)
				}
				err = netlink.RouteReplace(&netlink.Route{Dst: dst, Gw: net.ParseIP(n.Status.Addresses[i].Address)})
				if err != nil {
					return fmt.Errorf("to %s: %w", cidr, err)
				}
			}
		}
		return nil
	})
}

// clusterOf is how tests reach the bed.
func clusterOf(b *bed.Bed) cluster {
	return cluster{kubeconfig: b.Plane().AdminKubeconfig(), start: b.Host(underlay.ControlPlane).Start}
}
