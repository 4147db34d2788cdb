// Package suite holds the tests that need a whole cluster: labs (package lab) with a real Open vSwitch, the real agent
// and real CNI calls. Tests check what a user would see: packets, addresses, routes, logs, exit codes. Labs are
// identified by their directory, which is the test's own; they end with the test.
package suite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
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

// cluster is a lab with its tests' helpers.
type cluster struct {
	*lab.Lab
	family underlay.IPFamily
}

// up creates a lab that ends with the test. When the test fails, the agents' logs are shown, and what the
// switches have cached.
func up(t *testing.T, o lab.Options) cluster {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED, NOT TESTED: a lab needs root")
	}
	o.Dir, o.BinDir, o.Datapath = filepath.Join(t.TempDir(), "lab"), binDir, vswitch.Datapath(ovstest.UnderTest(t))
	if o.IPFamily == "" {
		o.IPFamily = underlay.Dual
	}
	l, err := lab.Up(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	c := cluster{l, o.IPFamily}
	t.Cleanup(func() {
		if t.Failed() {
			for _, node := range c.Nodes() {
				t.Logf("the log of %s's agents:\n%s", node, c.log(t, node))
				// Cached entries expire 10 s after their last packet.
				for _, dump := range []string{"dpctl/dump-flows", "dpctl/dump-conntrack"} {
					out, err := c.NodeExec(context.Background(), node, "ovs-appctl", "--timeout=5", dump)
					t.Logf("%s of %s: %v\n%s", dump, node, err, out)
				}
			}
		}
		if err := lab.Down(context.Background(), l.Dir(), nil); err != nil {
			t.Error(err)
		}
	})
	return c
}

// wait polls until done returns "", and fails the test with the last result after limit, or later (labtest.Limit). It
// returns how long it took.
func wait(t *testing.T, limit time.Duration, done func() (missing string)) time.Duration {
	t.Helper()
	limit = labtest.Limit(limit)
	for start := time.Now(); ; time.Sleep(ovstest.Pause(t)) {
		missing := done()
		if missing == "" {
			return time.Since(start)
		}
		if time.Since(start) > limit {
			t.Fatalf("not after %s: %s", limit, missing)
		}
	}
}

// must fails the test on an error.
func must[T any](t *testing.T, v T, err error) T {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// apply stores manifests; remove deletes them.
func (c cluster) apply(t *testing.T, manifests ...string) {
	t.Helper()
	_, err := c.Apply("test", []byte(strings.Join(manifests, "\n---\n")))
	must(t, 0, err)
}

func (c cluster) remove(t *testing.T, manifests ...string) {
	t.Helper()
	_, err := c.Delete("test", []byte(strings.Join(manifests, "\n---\n")))
	must(t, 0, err)
}

// podYAML is a Pod in the namespace default.
func podYAML(name, node string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\n"+
		"spec: {nodeName: %s, containers: [{name: main, image: none}]}\n", name, node)
}

// nodeYAML is a Node with podCIDRs and InternalIPs, both joined by commas; both may be empty.
func nodeYAML(name, podCIDRs, addrs string) string {
	s := fmt.Sprintf("apiVersion: v1\nkind: Node\nmetadata: {name: %s}\n", name)
	if podCIDRs != "" {
		all := strings.Split(podCIDRs, ",")
		s += fmt.Sprintf("spec: {podCIDR: %q, podCIDRs: [%s]}\n", all[0], `"`+strings.Join(all, `", "`)+`"`)
	}
	if addrs != "" {
		s += "status:\n  addresses:\n"
		for a := range strings.SplitSeq(addrs, ",") {
			s += fmt.Sprintf("  - {type: InternalIP, address: %q}\n", a)
		}
	}
	return s
}

// addPods creates pods, each in the form "name@node", and waits until they run.
func (c cluster) addPods(t *testing.T, pods ...string) {
	t.Helper()
	var manifests []string
	for _, p := range pods {
		name, node, _ := strings.Cut(p, "@")
		manifests = append(manifests, podYAML(name, node))
	}
	c.apply(t, manifests...)
	if err := c.WaitPods(labtest.Within(t, 30*time.Second)); err != nil {
		t.Fatal(err)
	}
}

// warm sends packets between all pairs of nodes until they are answered. The userspace datapath resolves the other end
// of a tunnel with an ARP request of its own and drops the packet that needed it. From here on none may be lost.
func (c cluster) warm(t *testing.T) {
	t.Helper()
	for i, from := range c.Nodes() {
		for j := range c.Nodes() {
			if i == j {
				continue
			}
			to := gatewayOf(c.family.PodCIDRs(j + 1)[0])
			wait(t, 15*time.Second, func() string {
				if _, err := c.host(t, from).run("ping", "-c1", "-W1", to.String()); err != nil {
					return err.Error()
				}
				return ""
			})
		}
	}
}

func gatewayOf(podCIDR netip.Prefix) netip.Addr { return podCIDR.Addr().Next() }

// place is where things run: a host of the lab, or a pod.
type place struct {
	name  string
	host  host.Host
	netns string // of a pod, as its node sees it
	ips   []netip.Addr
	mac   api.MAC
}

func (c cluster) host(t *testing.T, name string) place {
	t.Helper()
	h, err := c.Host(name)
	return place{name: name, host: must(t, h, err)}
}

// pod is a pod of the namespace default in its current state.
func (c cluster) pod(t *testing.T, name string) place {
	t.Helper()
	rec, err := c.Records().Load("default/" + name)
	if err != nil || rec == nil || rec.Netns == "" {
		t.Fatalf("pod %s has no sandbox: %+v, %v", name, rec, err)
	}
	p := c.host(t, rec.Node)
	p.name, p.netns = name, rec.Netns
	for _, ip := range rec.IPs {
		p.ips = append(p.ips, netip.MustParseAddr(ip))
	}
	p.mac = p.macOf(t, "eth0")
	return p
}

// macOf is the MAC address of an interface.
func (p place) macOf(t *testing.T, ifName string) (mac api.MAC) {
	t.Helper()
	return api.MAC(p.link(t, ifName).HardwareAddr)
}

func (p place) link(t *testing.T, ifName string) (ifc *net.Interface) {
	t.Helper()
	err := p.do(func() (err error) { ifc, err = net.InterfaceByName(ifName); return err })
	return must(t, ifc, err)
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

// exec is run that fails the test on an error. The words of line are the program and its arguments.
func (p place) exec(t *testing.T, line string) string {
	t.Helper()
	out, err := p.run(strings.Fields(line)...)
	return must(t, out, err)
}

// log is the log of a node's agents.
func (c cluster) log(t *testing.T, node string) string {
	t.Helper()
	path, err := c.AgentLog(node)
	if err != nil {
		t.Error(err)
		return ""
	}
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	return string(data)
}

// metrics are those of the node's agent.
func (c cluster) metrics(t *testing.T, node string) string {
	t.Helper()
	return c.get(t, node, "/metrics")
}

// get is what a node's agent serves at path.
func (c cluster) get(t *testing.T, node, path string) string {
	t.Helper()
	p := c.host(t, node)
	client := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
			err = p.do(func() error { conn, err = (&net.Dialer{}).DialContext(ctx, network, addr); return err })
			return conn, err
		}}}
	resp, err := client.Get("http://127.0.0.1:10350" + path)
	must(t, 0, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	must(t, 0, err)
	return string(body)
}

// metric is the value of a metric without labels of a node's agent.
func (c cluster) metric(t *testing.T, node, name string) float64 {
	t.Helper()
	for line := range strings.SplitSeq(c.metrics(t, node), "\n") {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			v, err := strconv.ParseFloat(value, 64)
			return must(t, v, err)
		}
	}
	t.Fatalf("%s has no metric %s", node, name)
	return 0
}

// awaitMetric waits until an agent's metric has a value: metrics are set after everything is applied.
func (c cluster) awaitMetric(t *testing.T, node, name string, want float64) {
	t.Helper()
	wait(t, labtest.Patience(t, 10*time.Second), func() string {
		if got := c.metric(t, node, name); got != want {
			return fmt.Sprintf("%s of %s is %v, want %v", name, node, got, want)
		}
		return ""
	})
}

// datapathFollows waits until the datapath of each node is revalidated against the current tables.
func (c cluster) datapathFollows(t *testing.T) {
	t.Helper()
	for _, node := range c.Nodes() {
		c.host(t, node).exec(t, "ovs-appctl revalidator/wait")
	}
}

// flows is the dump of br-int's flows without what changes by itself, or whenever other flows do.
func (c cluster) flows(t *testing.T, node string) string {
	t.Helper()
	dump := c.host(t, node).exec(t, "ovs-ofctl -O OpenFlow15 --no-stats dump-flows br-int")
	return regexp.MustCompile(`(?m)^.*priority=65535,pkt_mark=.*\n?`).ReplaceAllString(dump, "")
}
