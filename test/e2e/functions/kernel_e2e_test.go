package functions

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-cni/fairlead/test/e2e/bed"
	"github.com/fairlead-cni/fairlead/test/e2e/cluster"
	"github.com/fairlead-cni/fairlead/test/e2e/install"
	"github.com/fairlead-cni/fairlead/test/e2e/matrix"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
	"github.com/fairlead-cni/fairlead/test/lab/vswitch"
)

// The default installation: "helm install" without values, on nodes whose kernel has openvswitch. Pods reach each other
// across nodes and by ClusterIPs, doctor finds nothing, and replacing the pod of Open vSwitch costs hosts nothing. The
// same holds with bridged pods, where uplink mode auto attaches the nodes' NICs.
func TestE2EKernelDefaults(t *testing.T) {
	cluster.Must(t, vswitch.KernelDatapath()) // before anything is started
	c := kernel{functions: functions{cluster.Bare(t, bed.Options{Name: "kernel", Nodes: 2})}}
	defer c.keep(t)
	c.helm(t, "install")
	t.Run("datapath", c.datapath)
	c.apply(t, "testdata/kernel.yaml")
	t.Run("pods", c.pods)
	t.Run("ClusterIP", c.clusterIP)
	t.Run("UDP", c.dnsLike)
	t.Run("doctor", c.doctor)
	t.Run("fairlead-ovs replaced", func(t *testing.T) { c.replace(t, c.paths(t)) })

	c.helm(t, "upgrade", "agent.config.enableBridgingMode=true")
	c.apply(t, "testdata/kernel-vlan.yaml")
	t.Run("uplink", c.uplink)
	t.Run("VLAN", c.vlan)
	t.Run("doctor, attached", c.doctor)
	t.Run("fairlead-ovs replaced, attached", func(t *testing.T) {
		v := c.Running(t, "vlan10", len(c.Nodes()))
		c.replace(t, append(c.paths(t), matrix.Path{Kind: ofPods, From: c.PodPlace(t, v[0], 0), To: c.PodPlace(t, v[1], 0)}))
	})
}

// kernel is a cluster on the kernel's datapath. table records what replacing Open vSwitch costs.
type kernel struct {
	functions
	table []matrix.Event
}

// helm installs or upgrades the chart with these values and no others, and waits until all of Fairlead runs with them.
func (c *kernel) helm(t *testing.T, command string, values ...string) {
	t.Helper()
	dir, err := install.Chart()
	cluster.Must(t, err)
	begun := time.Now()
	args := []string{command, "fairlead", dir}
	for _, v := range values {
		args = append(args, "--set="+v)
	}
	_, err = install.Helm(t.Context(), c.Bed, args...)
	cluster.Must(t, err)
	for _, node := range c.Nodes() {
		c.ovsReady(t, node, "")
	}
	for _, set := range []string{"daemonset/fairlead-agent", "deployment/fairlead-controller"} {
		cluster.Eventually(t, func() error {
			_, err := c.Kubectl(t.Context(), "rollout", "status", "-n", "kube-system", set, "--timeout=60s")
			return err
		})
	}
	c.AwaitReady(t)
	t.Logf("helm %s %q: %.0f s until all is ready", command, values, time.Since(begun).Seconds())
}

// datapath checks that Open vSwitch is the DaemonSet's, forwards in the kernel, and has a tunnel.
func (c *kernel) datapath(t *testing.T) {
	for _, node := range c.Nodes() {
		out, err := c.NodeExec(t.Context(), node, "ovs-dpctl", "show")
		cluster.Must(t, err)
		if !strings.Contains(out, "system@ovs-system") || !strings.Contains(out, "(geneve") {
			t.Errorf("%s has no datapath with a tunnel in the kernel:\n%s", node, out)
		}
	}
}

// uplink checks that every node's NIC is attached, in the mode that auto selects here.
func (c *kernel) uplink(t *testing.T) {
	for _, node := range c.Nodes() {
		cluster.Eventually(t, func() error {
			out, err := c.onNode(t.Context(), node, "fairlead-agent", "fairleadctl", "uplink", "status")
			if err == nil && (!strings.Contains(out, "attached") || !strings.Contains(out, "steer")) {
				err = errors.New("not attached in mode steer")
			}
			if err != nil {
				err = fmt.Errorf("%s: %w\n%s", node, err, out)
			}
			return err
		})
	}
}

// vlan checks that bridged pods reach each other, and that the host outside and routed pods reach them.
func (c *kernel) vlan(t *testing.T) {
	pods := c.Running(t, "vlan10", len(c.Nodes()))
	urls := cluster.URLs("8080", cluster.Addrs(pods...)...)
	for _, p := range append(c.Running(t, "client", len(c.Nodes())), pods...) {
		c.Get(t, p.Name, urls...)
	}
	for _, url := range urls {
		cluster.Eventually(t, func() error { return c.Outside(t.Context(), url) })
	}
}

// Kinds of traffic. The control runs between two hosts outside the nodes: it loses packets only if the guest is too
// slow.
const (
	ofHosts   = "hosts"
	ofPods    = "pods"
	ofControl = "control"
)

// paths are paths between hosts, and between pods on one node and across, of both families.
func (c *kernel) paths(t *testing.T) []matrix.Path {
	t.Helper()
	const v4, v6 = 0, 1
	host := func(n int) matrix.Place {
		return c.HostPlace(t, underlay.NodeName(n), c.Underlay().NodeAddrs(n)[v4])
	}
	plane := c.HostPlace(t, underlay.ControlPlane, underlay.Dual.ControlPlaneAddrs()[v4])
	outside := c.HostPlace(t, underlay.Outside, underlay.Dual.FarAddrs()[v4])
	pod := func(app, node string, family int) matrix.Place {
		pods := c.Running(t, app, len(c.Nodes()))
		i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Spec.NodeName == node })
		return c.PodPlace(t, pods[i], family)
	}
	return []matrix.Path{
		{Kind: ofControl, From: outside, To: plane},
		{Kind: ofHosts, From: host(1), To: host(2)},
		{Kind: ofHosts, From: outside, To: host(1)},
		{Kind: ofPods, From: pod("client", "node1", v4), To: pod("web", "node1", v4)},
		{Kind: ofPods, From: pod("client", "node1", v4), To: pod("web", "node2", v4)},
		{Kind: ofPods, From: pod("client", "node2", v6), To: pod("web", "node1", v6)},
	}
}

// stall is the gap in the control's answers from which on other streams may have timed out: a new flow's datagram after
// 2 s, an HTTP request after 3 s. The guest's single processor causes some gaps.
const stall = time.Second

// slowed reports whether the control shows that the guest was too slow.
func slowed(control matrix.Toll) bool {
	return control.Lost() || max(control.Established.LongestGap, control.New.LongestGap) > stall
}

// replace replaces the pod of Open vSwitch on node1 under traffic. Established flows of hosts must lose nothing in any
// attempt in which those of the control lose nothing. Neither must their new flows and HTTP requests, which is retried
// if the guest was too slow. All traffic must work again afterwards.
func (c *kernel) replace(t *testing.T, paths []matrix.Path) {
	const attempts = 3
	c.under(t, "nothing", paths, func() {})
	for attempt := 1; ; attempt++ {
		cost := c.under(t, fmt.Sprintf("%s, attempt %d", filepath.Base(t.Name()), attempt), paths, func() {
			old, err := c.PodOf(t.Context(), "fairlead-ovs", "node1")
			cluster.Must(t, err)
			c.Run(t, "delete", "pod", "-n", "kube-system", old)
			c.ovsReady(t, "node1", old)
		})
		hosts := slices.DeleteFunc(cost.Of(ofHosts), func(of matrix.Toll) bool { return !of.Lost() })
		if len(hosts) == 0 {
			return
		}
		lost := func(of matrix.Toll) bool { return of.Established.Lost > 0 }
		established := slices.ContainsFunc(hosts, lost) && !slices.ContainsFunc(cost.Of(ofControl), lost)
		slow := slices.ContainsFunc(cost.Of(ofControl), slowed)
		if established || !slow || attempt == attempts {
			t.Fatalf("attempt %d, the guest was too slow: %t (%v); hosts lost: %v", attempt, slow, cost.Of(ofControl), hosts)
		}
		t.Logf("once more, since the guest was too slow (%v): %v", cost.Of(ofControl), hosts)
	}
}

// under returns what all paths lose while do runs.
func (c *kernel) under(t *testing.T, name string, paths []matrix.Path, do func()) matrix.Event {
	t.Helper()
	m, err := matrix.Start(paths)
	cluster.Must(t, err)
	defer m.Stop()
	if err := m.Flow(cluster.Patience); err != nil {
		t.Fatalf("before: %v", err)
	}
	do()
	if err := m.Flow(cluster.Patience); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	cost := matrix.Event{Name: name, Tolls: m.Stop()}
	c.table = append(c.table, cost)
	return cost
}

// keep logs the table and, if FAIRLEAD_E2E_OUT names a directory, writes it there.
func (c *kernel) keep(t *testing.T) {
	table := matrix.Table(c.table, ofControl, ofHosts, ofPods)
	t.Logf("What was lost:\n%s", table)
	if dir := os.Getenv("FAIRLEAD_E2E_OUT"); dir != "" {
		cluster.Must(t, os.WriteFile(filepath.Join(dir, t.Name()+".txt"), []byte(table), 0o644))
	}
}

// ovsReady waits until Open vSwitch's pod on a node is ready and not the old one.
func (c *kernel) ovsReady(t *testing.T, node, old string) {
	t.Helper()
	cluster.Eventually(t, func() error { return c.ReadyOn(t.Context(), "fairlead-ovs", node, old) })
}

// onNode runs a program in the pod of one of Fairlead's DaemonSets on a node.
func (c *kernel) onNode(ctx context.Context, node, set string, argv ...string) (string, error) {
	pod, err := c.PodOf(ctx, set, node)
	if err != nil {
		return "", err
	}
	return c.Kubectl(ctx, append([]string{"exec", "-n", "kube-system", pod, "--"}, argv...)...)
}
