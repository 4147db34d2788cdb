package uninstall

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/fairlead-cni/fairlead/test/e2e/bed"
	"github.com/fairlead-cni/fairlead/test/e2e/cluster"
	"github.com/fairlead-cni/fairlead/test/e2e/install"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
	"github.com/fairlead-cni/fairlead/test/probe"
)

// pods are routed and bridged pods, one of each on every node.
const pods = `
apiVersion: crd.antrea.io/v1beta1
kind: IPPool
metadata: {name: vlan10}
spec:
  ipRanges: [{start: 192.168.110.100, end: 192.168.110.199}]
  subnetInfo: {gateway: 192.168.110.1, prefixLength: 24, vlan: 10}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: routed}
spec:
  selector: {matchLabels: {app: routed}}
  template:
    metadata: {labels: {app: routed}}
    spec:
      containers: [{name: main, image: "` + bed.TestImage + `", imagePullPolicy: Never, args: [serve]}]
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: bridged}
spec:
  selector: {matchLabels: {app: bridged}}
  template:
    metadata: {labels: {app: bridged}, annotations: {ipam.antrea.io/ippools: vlan10}}
    spec:
      containers: [{name: main, image: "` + bed.TestImage + `", imagePullPolicy: Never, args: [serve]}]
`

// hostLimit is how long the nodes' own traffic may stop while the NIC is restored. In measurements it did not stop.
const hostLimit = 250 * time.Millisecond

// attempts is the maximum number of attempts while the machine may be the cause of losses.
const attempts = 3

// The steps of docs/install.md#uninstall, in mode bridge, where the NIC is a port of Open vSwitch: nothing of Fairlead
// is left on any node, what was there before is restored, and the pools stay. Each step may be repeated.
func TestE2EUninstall(t *testing.T) {
	c := cluster.Bare(t, bed.Options{Name: "uninstall", Nodes: 2})
	before := c.Traces(t)
	manifest, err := install.Manifest(c.Bed, install.Bridge()...)
	cluster.Must(t, err)
	remove := func() {
		t.Helper()
		_, err := c.KubectlStdin(t.Context(), manifest, "delete", "-f", "-", "-l", "app.kubernetes.io/component!=crds",
			"--ignore-not-found", "--timeout=60s")
		cluster.Must(t, err)
	}
	for attempt := 1; ; attempt++ {
		c.Install(t, install.Bridge()...)
		c.Apply(t, []byte(pods))
		c.Running(t, "routed", len(c.Nodes()))
		c.Running(t, "bridged", len(c.Nodes()))
		attached(t, c)

		streams, control := hosts(t, c)
		begun := time.Now()
		out, err := c.Fairleadctl(t, "uninstall", "--yes")
		cluster.Must(t, err)
		t.Logf("after %.1f s fairleadctl has said\n%s", time.Since(begun).Seconds(), out)
		again := lost(t, streams, control, attempt == attempts)

		remove()
		cluster.Eventually(t, func() error {
			out, err := c.Kubectl(t.Context(), "get", "pods", "-n", "kube-system", "-o", "name", "-l", "app.kubernetes.io/part-of=fairlead")
			if err == nil && out != "" {
				err = fmt.Errorf("there are still %s", out)
			}
			return err
		})
		if !again {
			break
		}
	}
	c.AsBefore(t, before)

	out, err := c.Fairleadctl(t, "uninstall", "--yes")
	if err == nil || !strings.Contains(err.Error(), "Fairlead is not installed") {
		t.Errorf("a second time: %v\n%s", err, out)
	}
	remove()
	if out := c.Run(t, "get", "ippools", "-o", "name"); !strings.Contains(out, "/vlan10") {
		t.Errorf("the pools are gone: %q", out)
	}
	c.AsBefore(t, before)

	// It can be installed again.
	c.Install(t, install.Steer()...)
}

// attached waits until every node's address is on br-uplink: after an earlier attempt pods run already.
func attached(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	for i, node := range c.Nodes() {
		cluster.Eventually(t, func() error {
			out, err := c.NodeExec(t.Context(), node, "ip", "-o", "addr", "show", "dev", "br-uplink")
			if err == nil && !strings.Contains(out, c.Underlay().NodeAddrs(i + 1)[0].Addr().String()) {
				err = fmt.Errorf("br-uplink of %s has %s", node, out)
			}
			return err
		})
	}
}

// hosts starts a stream from beyond the router to every node, and a control stream to the control plane: losses of the
// control are the machine's.
func hosts(t *testing.T, c *cluster.Cluster) (streams map[string]*probe.Stream, control *probe.Stream) {
	t.Helper()
	netns := func(name string) ns.NetNS {
		n, err := ns.GetNS(filepath.Join(c.Host(name).Dir, "ns", "net"))
		cluster.Must(t, err)
		t.Cleanup(func() { n.Close() })
		return n
	}
	from, addr := netns(underlay.Outside), underlay.Dual.FarAddrs()[0].Addr()
	start := func(name string, to netip.Addr) *probe.Stream {
		port, stop, err := probe.Echo(netns(name), to)
		cluster.Must(t, err)
		t.Cleanup(stop)
		s, err := probe.Start(from, addr, netip.AddrPortFrom(to, port), 10*time.Millisecond)
		cluster.Must(t, err)
		return s
	}
	streams = map[string]*probe.Stream{}
	for i, node := range c.Nodes() {
		streams[node] = start(node, c.Underlay().NodeAddrs(i + 1)[0].Addr())
	}
	return streams, start(underlay.ControlPlane, underlay.Dual.ControlPlaneAddrs()[0].Addr())
}

// lost ends the streams and checks what they have lost. It reports whether to try again because the machine may be the
// cause, which is never so for the last attempt.
func lost(t *testing.T, streams map[string]*probe.Stream, control *probe.Stream, last bool) (again bool) {
	t.Helper()
	controls := []probe.Report{control.Stop()}
	for node, s := range streams {
		r := s.Stop()
		t.Logf("%s, asked from outside meanwhile: %s; the control plane: %s", node, r, controls[0])
		switch {
		case r.Sent > 0 && r.Outage <= hostLimit:
		case r.Sent > 0 && probe.Excused([]probe.Report{r}, controls) && !last:
			again = true
		default:
			t.Errorf("%s: %s, want at most %s", node, r, hostLimit)
		}
	}
	return again
}
