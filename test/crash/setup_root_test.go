// Package crash stops the agent in the middle of its work, with SIGKILL and with SIGTERM, and checks what it leaves
// behind on the node. The nodes are those of a lab (package lab) that is the test's own, identified by its directory.
package crash

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/chaos"
	"github.com/fairlead-cni/fairlead/test/crash/nodestate"
	"github.com/fairlead-cni/fairlead/test/lab/host"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/lab/sandbox"
	"github.com/fairlead-cni/fairlead/test/lab/vswitch"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// node is where agents are killed.
const node = "node1"

// binDir is where labtest.Main has built the programs; empty if it did not build them.
var binDir string

func TestMain(m *testing.M) { labtest.Main(m, &binDir) }

// cluster is a lab with two nodes and few addresses for pods, so that a free address is soon used again.
type cluster struct {
	*lab.Lab
	node host.Host
	ref  nodestate.Reference // of node
	api  *kubeAPI            // nil where Nodes and Pods come from a directory
}

// nodes are the manifests of both: node1 has 29 addresses for pods.
const nodes = `
apiVersion: v1
kind: Node
metadata: {name: node1}
spec: {podCIDR: 10.77.1.0/27, podCIDRs: [10.77.1.0/27, "fd77:0:0:1::/123"]}
status: {addresses: [{type: InternalIP, address: 192.168.77.11}, {type: InternalIP, address: "fd77::11"}]}
---
apiVersion: v1
kind: Node
metadata: {name: node2}
spec: {podCIDR: 10.77.2.0/27, podCIDRs: [10.77.2.0/27, "fd77:0:0:2::/123"]}
status: {addresses: [{type: InternalIP, address: 192.168.77.12}, {type: InternalIP, address: "fd77::12"}]}
`

// up creates the cluster, with the pods default/near on node1 and default/far on node2. It ends with the test. When the
// test fails, the end of the agent's log is shown.
func up(t *testing.T) cluster {
	t.Helper()
	return upIn(t, lab.Directory)
}

// upIn is up with a directory or with Kubernetes, where node1 has as many addresses as there are in its podCIDR.
func upIn(t *testing.T, kind lab.Cluster) cluster {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED, NOT TESTED: a lab needs root")
	}
	l, err := lab.Up(t.Context(), lab.Options{Dir: filepath.Join(t.TempDir(), "lab"), BinDir: binDir,
		Datapath: vswitch.Datapath(ovstest.UnderTest(t)), Cluster: kind, NoAgent: true,
		// The end that other nodes probe is attached like a pod: its steps would be mistaken for those of pods.
		Config: []byte("reachability: none\n")})
	must(t, err)
	t.Cleanup(func() { must(t, lab.Down(context.Background(), l.Dir(), nil)) })
	h, err := l.Host(node)
	must(t, err)
	c := cluster{Lab: l, node: h}
	t.Cleanup(func() {
		if t.Failed() {
			lines := strings.Split(c.agentLog(t), "\n")
			t.Logf("the end of the agents' log:\n%s", strings.Join(lines[max(0, len(lines)-150):], "\n"))
		}
	})
	if kind == lab.Kube {
		c.api = newKubeAPI(t, l)
	} else {
		_, err = l.Apply("nodes", []byte(nodes))
		must(t, err)
	}
	ctx := labtest.Within(t, time.Minute)
	for _, n := range l.Nodes() {
		must(t, l.AgentStart(ctx, n))
	}
	for _, n := range l.Nodes() {
		must(t, l.WaitReady(ctx, n))
	}
	empty := c.state(t)
	c.apply(t, podYAML("near", node), podYAML("far", "node2"))
	c.settle(t)
	c.ref, err = nodestate.NewReference(empty, c.state(t), c.pods(t)[0])
	must(t, err)
	return c
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually polls until done returns nothing, and fails the test with its last result.
func eventually(t *testing.T, limit time.Duration, done func() (wrong []string)) {
	t.Helper()
	limit = labtest.Patience(t, max(limit, time.Minute)) // a longer limit costs nothing on success
	for start := time.Now(); ; time.Sleep(ovstest.Pause(t)) {
		wrong := done()
		if len(wrong) == 0 {
			return
		}
		if time.Since(start) > limit {
			t.Fatalf("not after %s:\n  %s", limit, strings.Join(wrong, "\n  "))
		}
	}
}

// dice are the test's random numbers. The environment variable SEED repeats those of another run; the interleaving of
// system calls is random and not repeated.
func dice(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if stored := chaos.Seeds(t); len(stored) > 0 {
		seed = stored[0]
	}
	return diceOf(t, seed)
}

func diceOf(t *testing.T, seed uint64) *rand.Rand {
	t.Helper()
	t.Logf("to repeat: SEED=%d go test -run '^%s$' ./test/crash", seed, t.Name())
	return rand.New(rand.NewPCG(seed, 0))
}

func podYAML(name, node string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %q}\n"+
		"spec: {nodeName: %s, containers: [{name: main, image: none}]}\n", name, node)
}

func (c cluster) apply(t *testing.T, manifests ...string) {
	t.Helper()
	_, err := c.Apply("test", []byte(strings.Join(manifests, "\n---\n")))
	must(t, err)
}

func (c cluster) remove(t *testing.T, manifests ...string) {
	t.Helper()
	_, err := c.Delete("test", []byte(strings.Join(manifests, "\n---\n")))
	must(t, err)
}

// settle waits until every pod runs or is gone.
func (c cluster) settle(t *testing.T) {
	t.Helper()
	must(t, c.WaitPods(labtest.Within(t, time.Minute)))
}

func (c cluster) state(t *testing.T) nodestate.State {
	t.Helper()
	s, err := nodestate.Read(labtest.Within(t, time.Minute), c.node)
	must(t, err)
	return s
}

// pods are the runner's pods on node1, which must be the expected ones.
func (c cluster) pods(t *testing.T) []nodestate.Pod {
	t.Helper()
	records, err := c.Records().List()
	must(t, err)
	wanted := map[string]bool{}
	for _, m := range c.podObjects(t) {
		wanted[m.Namespace+"/"+m.Name] = true
	}
	var pods []nodestate.Pod
	for _, r := range records {
		if !wanted[r.Pod()] || r.State != sandbox.Running {
			t.Fatalf("the runner's record of %s: %+v", r.Pod(), *r)
		}
		delete(wanted, r.Pod())
		if r.Node == node {
			pods = append(pods, c.pod(t, r))
		}
	}
	if len(wanted) > 0 {
		t.Fatalf("the runner does not know %v", wanted)
	}
	return pods
}

func (c cluster) podObjects(t *testing.T) []*corev1.Pod {
	t.Helper()
	if c.api != nil {
		return c.api.pods(t)
	}
	pods, err := c.Manifests().Pods()
	must(t, err)
	return pods
}

func (c cluster) pod(t *testing.T, r *sandbox.Record) nodestate.Pod {
	t.Helper()
	p := nodestate.Pod{Name: r.Pod(), ContainerID: r.ContainerID, Netns: r.Netns}
	for _, ip := range r.IPs {
		p.IPs = append(p.IPs, netip.MustParseAddr(ip))
	}
	must(t, c.node.DoNet(r.Netns, func() error {
		eth0, err := net.InterfaceByName("eth0")
		if err == nil {
			p.MAC = api.MAC(eth0.HardwareAddr)
		}
		return err
	}))
	return p
}

// check compares the node with the expected pods: each has exactly what it needs and is reachable from the node and
// from a pod on the other node, and nothing else exists. What the agent removes after its start has some seconds.
func (c cluster) check(t *testing.T) {
	t.Helper()
	pods := c.pods(t)
	eventually(t, 10*time.Second, func() []string { return c.differences(t, pods) })
	c.reach(t, pods)
}

// differences are what the node has beyond what these pods need, and what is missing. A node whose state cannot be read
// differs: an agent that is ready may not have noticed yet that its bridge is gone.
func (c cluster) differences(t *testing.T, pods []nodestate.Pod) []string {
	t.Helper()
	s, err := nodestate.Read(labtest.Within(t, time.Minute), c.node)
	if err != nil {
		return []string{err.Error()}
	}
	return c.ref.Differences(s, pods)
}

func (c cluster) reach(t *testing.T, pods []nodestate.Pod) {
	t.Helper()
	far, err := c.Records().Load("default/far")
	must(t, err)
	other, err := c.Host(far.Node)
	must(t, err)
	var pings errgroup.Group
	pings.SetLimit(8)
	for _, p := range pods {
		for _, ip := range p.IPs {
			pings.Go(func() error { return ping(c.node.Start, p.Name, ip) })
			pings.Go(func() error {
				there := func(cmd *exec.Cmd) error { return other.DoNet(far.Netns, cmd.Start) }
				return ping(there, p.Name+" from the other node", ip)
			})
		}
	}
	if err := pings.Wait(); err != nil {
		t.Error(err)
	}
}

// ping retries each second, also after an ICMP error, until there is a reply, for a minute. In User-Mode Linux on a
// busy machine that takes seconds: the first packet of a flow is an upcall to ovs-vswitchd.
func ping(start func(*exec.Cmd) error, what string, ip netip.Addr) error {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		err := run(start, what, []string{"ping", "-c1", "-w15", "-n", ip.String()})
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// run runs a program on a host and waits for it.
func run(start func(*exec.Cmd) error, what string, argv []string) error {
	cmd := exec.Command(argv[0], argv[1:]...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	err := start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return fmt.Errorf("%s: %s: %w\n%s", what, strings.Join(argv, " "), err, out.String())
	}
	return nil
}

// kill kills the agent with SIGKILL and starts it again at once.
func (c cluster) kill(t *testing.T) {
	t.Helper()
	must(t, c.AgentKill(labtest.Within(t, time.Minute), node))
	eventually(t, 5*time.Second, func() []string {
		// It has an exit code when its last thread is gone; before, it may seem dead and alive alternately.
		if s, err := c.AgentState(t.Context(), node); err != nil || s.PID != 0 || s.Exit == nil {
			return []string{fmt.Sprintf("the agent is %s, %v", s, err)}
		}
		return nil
	})
	must(t, c.AgentStart(labtest.Within(t, time.Minute), node))
}

// agentPID is the process to kill.
func (c cluster) agentPID(t *testing.T) int {
	t.Helper()
	s, err := c.AgentState(labtest.Within(t, time.Minute), node)
	must(t, err)
	return s.PID
}

func (c cluster) agentLog(t *testing.T) string {
	t.Helper()
	path, err := c.AgentLog(node)
	must(t, err)
	data, err := os.ReadFile(path)
	must(t, err)
	return string(data)
}

// watchAddresses fails the test when two pods run at one time with one address. It checks until stop is called.
func (c cluster) watchAddresses(t *testing.T) (stop func()) {
	t.Helper()
	done, ended := make(chan struct{}), make(chan struct{})
	pause := labtest.Patience(t, 5*time.Millisecond) // a check takes a guest 3 ms of its only CPU
	go func() {
		defer close(ended)
		for looks := 0; ; looks++ {
			if err := sharedAddress(c.Records()); err != nil {
				t.Error(err)
				return
			}
			select {
			case <-done:
				t.Logf("looked %d times for an address that two pods have", looks)
				return
			case <-time.After(pause):
			}
		}
	}()
	return func() { close(done); <-ended }
}

func sharedAddress(all sandbox.Records) error {
	records, err := all.List()
	if err != nil {
		return err
	}
	owners := map[string]*sandbox.Record{}
	for _, r := range records {
		if r.State != sandbox.Running {
			continue
		}
		for _, ip := range r.IPs {
			first := owners[ip]
			owners[ip] = r
			if first == nil {
				continue
			}
			// The first may have ended since it was read, but not run again with the same container.
			now, err := all.Load(first.Pod())
			if err == nil && now != nil && now.State == sandbox.Running && now.ContainerID == first.ContainerID &&
				slices.Contains(now.IPs, ip) {
				return fmt.Errorf("%s and %s run, and both have %s", first.Pod(), r.Pod(), ip)
			}
		}
	}
	return nil
}
