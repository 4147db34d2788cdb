// Package bridged holds the tests of pods on the underlay together with routed ones: which pods reach each other, what
// the underlay sees, and that the host's own traffic is unaffected. Labs are in mode bridge (package lab), identified
// by their directory, which is the test's own; they end with the test.
package bridged

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/lab/host"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
	"github.com/fairlead-cni/fairlead/test/lab/vswitch"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// binDir is where labtest.Main has built the programs; empty if it did not build them.
var binDir string

func TestMain(m *testing.M) { labtest.Main(m, &binDir) }

// cluster is a lab with pools in all VLANs.
type cluster struct{ *lab.Lab }

// up creates a lab of two nodes that ends with the test. When the test fails, the agents' logs are shown.
func up(t *testing.T, o lab.Options) cluster {
	t.Helper()
	c := upBare(t, o)
	for _, node := range c.Nodes() {
		c.awaitUplink(t, node)
	}
	for _, vlan := range underlay.VLANs() {
		c.apply(t, pools(vlan))
	}
	return c
}

// upBare is up without waiting for uplinks, and without pools.
func upBare(t *testing.T, o lab.Options) cluster {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED, NOT TESTED: a lab needs root")
	}
	o.Dir, o.BinDir, o.Datapath = filepath.Join(t.TempDir(), "lab"), binDir, vswitch.Datapath(ovstest.UnderTest(t))
	o.Mode = underlay.Bridge
	l, err := lab.Up(t.Context(), o)
	must(t, err)
	c := cluster{l}
	t.Cleanup(func() {
		if t.Failed() {
			for _, node := range c.Nodes() {
				path, _ := c.AgentLog(node)
				log, _ := os.ReadFile(path)
				t.Logf("the log of %s's agents:\n%s", node, log)
			}
		}
		if err := lab.Down(context.Background(), l.Dir(), nil); err != nil {
			t.Error(err)
		}
	})
	return c
}

// awaitUplink waits until the node's addresses are on br-uplink.
func (c cluster) awaitUplink(t *testing.T, node string) {
	t.Helper()
	p := c.host(t, node)
	wait(t, 30*time.Second, func() string {
		out, err := p.run("ip", "-br", "addr", "show", "dev", c.Transport())
		for i, a := range c.addrsOf(node) {
			if err != nil || !strings.Contains(out, a.String()) {
				return fmt.Sprintf("%s has not address %d, %s, on %s: %s, %v", node, i, a, c.Transport(), out, err)
			}
		}
		return ""
	})
}

func (c cluster) addrsOf(node string) (out []netip.Addr) {
	for i, name := range c.Nodes() {
		if name == node {
			for _, p := range c.NodeAddrs(i + 1) {
				out = append(out, p.Addr())
			}
		}
	}
	return out
}

// pools are two IPPools of a VLAN, p<VLAN>-v4 and p<VLAN>-v6, each written in another form.
func pools(vlan uint16) string {
	gw := underlay.Dual.VLANGatewayAddrs(vlan)
	net4 := strings.TrimSuffix(gw[0].Addr().String(), "1")
	net6 := strings.TrimSuffix(gw[1].Addr().String(), "1")
	return fmt.Sprintf(`apiVersion: crd.antrea.io/v1alpha2
kind: IPPool
metadata: {name: p%[1]d-v4}
spec:
  ipVersion: 4
  ipRanges: [{start: %[2]s100, end: %[2]s180, gateway: %[2]s1, prefixLength: 24, vlan: %[1]d}]
---
apiVersion: crd.antrea.io/v1beta1
kind: IPPool
metadata: {name: p%[1]d-v6}
spec:
  ipRanges: [{start: "%[3]s1000", end: "%[3]s1fff"}]
  subnetInfo: {gateway: "%[3]s1", prefixLength: 64, vlan: %[1]d}
`, vlan, net4, net6)
}

// podYAML is a Pod in the namespace default: routed, or on a VLAN if kind is a number.
func podYAML(name, kind, node, labels string) string {
	annotations := ""
	if kind != routed {
		annotations = fmt.Sprintf("ipam.antrea.io/ippools: \"p%[1]s-v4,p%[1]s-v6\"", kind)
	}
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata:\n  name: %s\n  labels: {%s}\n  annotations: {%s}\n"+
		"spec: {nodeName: %s, containers: [{name: main, image: none}]}\n", name, labels, annotations, node)
}

// addPods creates pods of these kinds on these nodes, named like a-10-node1, and waits until they run.
func (c cluster) addPods(t *testing.T, prefix string, kinds []string, nodes ...string) (out []place) {
	t.Helper()
	var manifests, names []string
	for _, node := range nodes {
		for _, kind := range kinds {
			name := prefix + "-" + kind + "-" + node
			names = append(names, name)
			manifests = append(manifests, podYAML(name, kind, node, "app: "+prefix))
		}
	}
	c.apply(t, manifests...)
	must(t, c.WaitPods(labtest.Within(t, 2*time.Minute)))
	for i, name := range names {
		out = append(out, c.pod(t, name, kinds[i%len(kinds)]))
	}
	return out
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wait polls until done returns "", and fails the test with the last result after limit, or later (labtest.Limit).
func wait(t *testing.T, limit time.Duration, done func() (missing string)) {
	t.Helper()
	limit = labtest.Limit(limit)
	for start := time.Now(); ; time.Sleep(ovstest.Pause(t)) {
		missing := done()
		if missing == "" {
			return
		}
		if time.Since(start) > limit {
			t.Fatalf("not after %s: %s", limit, missing)
		}
	}
}

func (c cluster) apply(t *testing.T, manifests ...string) {
	t.Helper()
	_, err := c.Apply("test", []byte(strings.Join(manifests, "\n---\n")))
	must(t, err)
}

// place is where things run: a host of the lab, or a pod.
type place struct {
	name string
	// kind is that of a pod (routed, or its VLAN), or the table's name of a host. node is the pod's node, or the host's
	// name.
	kind, node string
	host       host.Host
	netns      string // of a pod, as its node sees it
	ips        []netip.Addr
}

func (c cluster) host(t *testing.T, name string) place {
	t.Helper()
	h, err := c.Host(name)
	must(t, err)
	return place{name: name, node: name, host: h}
}

// pod is a pod of the namespace default in its current state.
func (c cluster) pod(t *testing.T, name, kind string) place {
	t.Helper()
	rec, err := c.Records().Load("default/" + name)
	if err != nil || rec == nil || rec.Netns == "" {
		t.Fatalf("pod %s has no sandbox: %+v, %v", name, rec, err)
	}
	p := c.host(t, rec.Node)
	p.name, p.kind, p.netns = name, kind, rec.Netns
	for _, ip := range rec.IPs {
		p.ips = append(p.ips, netip.MustParseAddr(ip))
	}
	return p
}

// of is the place's address of a family, 4 or 6.
func (p place) of(family int) netip.Addr {
	for _, a := range p.ips {
		if a.Is4() == (family == 4) {
			return a
		}
	}
	return netip.Addr{}
}

func (p place) mac(t *testing.T, ifName string) (mac api.MAC) {
	t.Helper()
	must(t, p.do(func() error {
		ifc, err := net.InterfaceByName(ifName)
		if err == nil {
			mac = api.MAC(ifc.HardwareAddr)
		}
		return err
	}))
	return mac
}

// do runs f in the place's namespaces. Sockets and processes that f creates belong to it.
func (p place) do(f func() error) error {
	if p.netns == "" {
		return p.host.Do(f)
	}
	return p.host.DoNet(p.netns, f)
}

// run runs a program in the place and returns its output. An error contains the output.
func (p place) run(argv ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	out := host.Collect(cmd, argv[0])
	err := p.do(cmd.Start)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		err = fmt.Errorf("%s: %s: %w\n%s", p.name, strings.Join(argv, " "), err, out.Text(err))
	}
	return out.Text(err), err
}
