// Package chain tests the CNI verbs from the side of a container runtime: libcni calls the real plugin on a node of a
// lab (package lab), alone and in a chain with the reference plugins portmap, bandwidth and tuning. Objects are
// identified by the tests' container IDs and network namespaces.
package chain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/crash/nodestate"
	"github.com/fairlead-cni/fairlead/test/lab/host"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/lab/vswitch"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// binDir is where labtest.Main has built the programs; empty if it did not build them.
var binDir string

func TestMain(m *testing.M) { labtest.Main(m, &binDir) }

// smallNode has room for five pods.
const smallNode = `
apiVersion: v1
kind: Node
metadata: {name: node2}
spec: {podCIDR: 10.77.2.0/29, podCIDRs: [10.77.2.0/29, "fd77:0:0:2::/125"]}
status: {addresses: [{type: InternalIP, address: 192.168.77.12}, {type: InternalIP, address: "fd77::12"}]}
`

// runtime is a container runtime on one node.
type runtime struct {
	lab  *lab.Lab
	node host.Host
	// ref is the reference from which the node's expected flows are computed.
	ref nodestate.Reference
}

// up creates a lab of two nodes that ends with the test, and returns a runtime for each. When the test fails, the
// agents' logs are shown.
func up(t *testing.T) (node1, node2 runtime) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED, NOT TESTED: a lab needs root")
	}
	for _, p := range []string{"portmap", "bandwidth", "tuning"} {
		if _, err := os.Stat("/usr/lib/cni/" + p); err != nil {
			t.Skipf("SKIPPED, NOT TESTED: no reference CNI plugin %s (Debian: containernetworking-plugins)", p)
		}
	}
	// The end that other nodes probe would be an additional port, created at any time.
	l := upLab(t, lab.Options{NoAgent: true, Config: []byte("reachability: none\n")})
	_, err := l.Apply("node2", []byte(smallNode))
	must(t, err)
	for _, n := range l.Nodes() {
		must(t, l.AgentStart(labtest.Within(t, 5*time.Second), n))
	}
	var runtimes []runtime
	for _, n := range l.Nodes() {
		must(t, l.WaitReady(labtest.Within(t, 30*time.Second), n))
		h, err := l.Host(n)
		must(t, err)
		r := runtime{lab: l, node: h}
		eventually(t, 10*time.Second, func() error { return r.status(alone("1.1.0")) })
		r.learn(t)
		runtimes = append(runtimes, r)
	}
	return runtimes[0], runtimes[1]
}

// upLab creates a lab that ends with the test.
func upLab(t *testing.T, o lab.Options) *lab.Lab {
	t.Helper()
	o.Dir, o.BinDir, o.Datapath = filepath.Join(t.TempDir(), "lab"), binDir, vswitch.Datapath(ovstest.UnderTest(t))
	l, err := lab.Up(t.Context(), o)
	must(t, err)
	t.Cleanup(func() {
		for _, n := range l.Nodes() {
			if path, err := l.AgentLog(n); err == nil && t.Failed() {
				log, _ := os.ReadFile(path)
				t.Logf("the log of %s's agent:\n%s", n, log)
			}
		}
		must(t, lab.Down(context.Background(), l.Dir(), nil))
	})
	return l
}

// learn reads the node's flows without pods and with one.
func (r *runtime) learn(t *testing.T) {
	t.Helper()
	empty := r.state(t)
	p := r.container(t)
	result := r.mustAdd(t, alone("1.0.0"), p)
	ref, err := nodestate.NewReference(empty, r.state(t), asPod(t, p, result))
	must(t, err)
	r.ref = ref
	r.mustDel(t, alone("1.0.0"), p)
	r.end(t, p)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually repeats f until it succeeds, and fails the test with its last error.
func eventually(t *testing.T, limit time.Duration, f func() error) {
	t.Helper()
	limit = labtest.Limit(labtest.Patience(t, limit))
	for start := time.Now(); ; time.Sleep(ovstest.Pause(t)) {
		err := f()
		if err == nil {
			return
		}
		if time.Since(start) > limit {
			t.Fatalf("not after %s: %v", limit, err)
		}
	}
}

// alone is a network of Fairlead without other plugins.
func alone(version string) string { return network(version, "chain") }

// network is a configuration list with Fairlead and further plugins, each as JSON.
func network(version, name string, others ...string) string {
	plugins := append([]string{`{"type": "fairlead"}`}, others...)
	return fmt.Sprintf(`{"cniVersion": %q, "name": %q, "plugins": [%s]}`, version, name, strings.Join(plugins, ", "))
}

// The reference plugins as a cluster has them.
const (
	portmap   = `{"type": "portmap", "capabilities": {"portMappings": true}}`
	bandwidth = `{"type": "bandwidth", "capabilities": {"bandwidth": true}}`
	tuning    = `{"type": "tuning", "sysctl": {"net.core.somaxconn": "517"}}`
)

// full is the whole chain.
func full(version string) string { return network(version, "chain", portmap, bandwidth, tuning) }

// container creates a network namespace for a new container ID, which is removed with the lab if not before.
func (r runtime) container(t *testing.T) *libcni.RuntimeConf {
	t.Helper()
	id := fmt.Sprintf("c%d-%s", time.Now().UnixNano(), strings.ReplaceAll(filepath.Base(t.Name()), " ", "-"))
	netns := filepath.Join("/run/netns", id)
	must(t, r.node.MakeNetns(netns))
	return &libcni.RuntimeConf{ContainerID: id, NetNS: netns, IfName: "eth0",
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", "web"}}}
}

// end removes the network namespace of a container.
func (r runtime) end(t *testing.T, p *libcni.RuntimeConf) {
	t.Helper()
	must(t, r.node.RemoveNetns(p.NetNS))
}

func (r runtime) call(conflist string, f func(*libcni.CNIConfig, *libcni.NetworkConfigList) error) error {
	return r.node.Do(func() error {
		list, err := libcni.NetworkConfFromBytes([]byte(conflist))
		if err != nil {
			return err
		}
		return f(libcni.NewCNIConfig([]string{"/opt/cni/bin"}, nil), list)
	})
}

func (r runtime) add(conflist string, p *libcni.RuntimeConf) (result types.Result, err error) {
	err = r.call(conflist, func(c *libcni.CNIConfig, l *libcni.NetworkConfigList) (err error) {
		result, err = c.AddNetworkList(context.Background(), l, p)
		return err
	})
	return result, err
}

func (r runtime) mustAdd(t *testing.T, conflist string, p *libcni.RuntimeConf) types.Result {
	t.Helper()
	result, err := r.add(conflist, p)
	must(t, err)
	return result
}

func (r runtime) del(conflist string, p *libcni.RuntimeConf) error {
	return r.call(conflist, func(c *libcni.CNIConfig, l *libcni.NetworkConfigList) error {
		return c.DelNetworkList(context.Background(), l, p)
	})
}

func (r runtime) mustDel(t *testing.T, conflist string, p *libcni.RuntimeConf) {
	t.Helper()
	must(t, r.del(conflist, p))
}

func (r runtime) check(conflist string, p *libcni.RuntimeConf) error {
	return r.call(conflist, func(c *libcni.CNIConfig, l *libcni.NetworkConfigList) error {
		return c.CheckNetworkList(context.Background(), l, p)
	})
}

func (r runtime) status(conflist string) error {
	return r.call(conflist, func(c *libcni.CNIConfig, l *libcni.NetworkConfigList) error {
		return c.GetStatusNetworkList(context.Background(), l)
	})
}

func (r runtime) gc(conflist string, valid ...*libcni.RuntimeConf) error {
	args := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{}}
	for _, p := range valid {
		args.ValidAttachments = append(args.ValidAttachments,
			types.GCAttachment{ContainerID: p.ContainerID, IfName: p.IfName})
	}
	return r.call(conflist, func(c *libcni.CNIConfig, l *libcni.NetworkConfigList) error {
		return c.GCNetworkList(context.Background(), l, args)
	})
}

// code is the error code of the CNI spec in an error, 0 if it has none.
func code(err error) uint {
	if e := (*types.Error)(nil); errors.As(err, &e) {
		return e.Code
	}
	return 0
}

func (r runtime) state(t *testing.T) nodestate.State {
	t.Helper()
	s, err := nodestate.Read(labtest.Within(t, 20*time.Second), r.node)
	must(t, err)
	return s
}

// has fails the test unless the node has what these pods need, and nothing of other pods. Ports and veths of deleted
// pods may disappear a little later. Network namespaces belong to the runtime.
func (r runtime) has(t *testing.T, pods ...nodestate.Pod) {
	t.Helper()
	limit := time.Now().Add(labtest.Limit(5 * time.Second))
	for {
		s := r.state(t)
		s.Netns = nil
		for _, p := range pods {
			s.Netns = append(s.Netns, p.Netns)
		}
		wrong := r.ref.Differences(s, pods)
		if len(wrong) == 0 {
			return
		}
		now := slices.DeleteFunc(slices.Clone(wrong), func(w string) bool {
			return strings.HasPrefix(w, "port too many") || strings.HasPrefix(w, "veth too many")
		})
		if len(now) > 0 || time.Now().After(limit) {
			t.Errorf("on %s:\n  %s", r.node.Name, strings.Join(wrong, "\n  "))
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// asPod is the container as described by a result of ADD.
func asPod(t *testing.T, p *libcni.RuntimeConf, result types.Result) nodestate.Pod {
	t.Helper()
	r, err := types100.NewResultFromResult(result)
	must(t, err)
	pod := nodestate.Pod{Name: p.ContainerID, ContainerID: p.ContainerID, Netns: p.NetNS}
	for _, ip := range r.IPs {
		addr, _ := netip.AddrFromSlice(ip.Address.IP)
		pod.IPs = append(pod.IPs, addr.Unmap())
	}
	slices.SortFunc(pod.IPs, netip.Addr.Compare)
	for _, i := range r.Interfaces {
		if i.Name == p.IfName {
			pod.MAC, err = api.ParseMAC(i.Mac)
			must(t, err)
		}
	}
	return pod
}

// text is a result in the form in which a plugin prints it.
func text(t *testing.T, result types.Result) string {
	t.Helper()
	data, err := json.Marshal(result)
	must(t, err)
	return string(data)
}

// in runs a program in a container.
func (r runtime) in(t *testing.T, p *libcni.RuntimeConf, line string) string {
	t.Helper()
	out, err := r.run(p, line)
	must(t, err)
	return out
}

// run runs a program in a container, or on the node if p is nil, and returns its output.
func (r runtime) run(p *libcni.RuntimeConf, line string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	argv := strings.Fields(line)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	out := host.Collect(cmd, argv[0])
	err := r.do(p, cmd.Start)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", line, err, out.Text(err))
	}
	return out.Text(err), err
}

func (r runtime) do(p *libcni.RuntimeConf, f func() error) error {
	if p == nil {
		return r.node.Do(f)
	}
	return r.node.DoNet(p.NetNS, f)
}
