package podcidr

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/diagnose/report"
	"github.com/fairlead-cni/fairlead/kube/inputs"
	"github.com/fairlead-cni/fairlead/test/apitest"
)

// shared is the API server of this package's tests: see TestMain.
var shared apitest.Shared

func TestMain(m *testing.M) {
	code := m.Run()
	if err := shared.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// patience bounds each wait for kube-controller-manager, which needs less than a second on an idle machine.
const patience = 2 * time.Minute

// realCluster is an API server with Nodes, and kube-controller-manager once it was started.
type realCluster struct {
	*apitest.Server
	t     *testing.T
	facts Facts
	kcm   *apitest.KCM
}

func newRealCluster(t *testing.T, f Facts, nodes map[string]inputs.Node) *realCluster {
	t.Helper()
	c := &realCluster{Server: shared.Get(t), t: t, facts: f}
	c.must(c.Admin().CoreV1().Nodes().DeleteCollection(t.Context(), atOnce(), metav1.ListOptions{}))
	c.forgetEvents()
	t.Cleanup(c.stop)
	for _, n := range sorted(nodes) {
		c.create(n)
	}
	return c
}

func atOnce() metav1.DeleteOptions { return metav1.DeleteOptions{GracePeriodSeconds: new(int64)} }

func (c *realCluster) forgetEvents() {
	c.t.Helper()
	c.must(c.Admin().CoreV1().Events("default").DeleteCollection(c.t.Context(), atOnce(), metav1.ListOptions{}))
}

func (c *realCluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *realCluster) create(n inputs.Node) {
	c.t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}
	for _, p := range n.PodCIDRs {
		node.Spec.PodCIDRs = append(node.Spec.PodCIDRs, p.String())
	}
	if len(n.PodCIDRs) > 0 {
		node.Spec.PodCIDR = node.Spec.PodCIDRs[0]
	}
	for _, a := range n.Addresses {
		node.Status.Addresses = append(node.Status.Addresses,
			corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
	}
	_, err := c.Admin().CoreV1().Nodes().Create(c.t.Context(), node, metav1.CreateOptions{})
	c.must(err)
}

// start starts kube-controller-manager with the flags of the Facts.
func (c *realCluster) start() error {
	c.stop()
	c.forgetEvents()
	args := append([]string{"--cluster-cidr=" + clusterCIDRs(c.facts.Ranges)}, maskFlags(c.facts.Ranges)...)
	args = append(args, fmt.Sprintf("--allocate-node-cidrs=%t", c.facts.Allocates == Yes))
	if len(c.facts.LeftOut) > 0 {
		args = append(args, "--service-cluster-ip-range="+report.Join(c.facts.LeftOut, ","))
	}
	var err error
	c.kcm, err = c.StartKCM(c.t.Context(), args...)
	return err
}

func (c *realCluster) stop() {
	if c.kcm != nil {
		c.kcm.Stop()
		c.kcm = nil
	}
}

// nodes are the Nodes of the API server.
func (c *realCluster) nodes() map[string]inputs.Node {
	c.t.Helper()
	list, err := c.Admin().CoreV1().Nodes().List(c.t.Context(), metav1.ListOptions{})
	c.must(err)
	nodes, problems := inputs.Nodes(list.Items)
	if len(problems) > 0 {
		c.t.Fatal(problems)
	}
	return nodes
}

// settled waits until each Node has a podCIDR or, unless all is set, kube-controller-manager's Event that none is
// available for it; the deadline fails the test.
func (c *realCluster) settled(all bool) map[string]inputs.Node {
	c.t.Helper()
	for start := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		refused, ended := map[string]bool{}, false
		if !all {
			refused, ended = c.refused(), c.kcm.Ended()
		}
		nodes := c.nodes() // read after the Events
		waits := func(n inputs.Node) bool { return len(n.PodCIDRs) == 0 && !refused[n.Name] }
		if !slices.ContainsFunc(sorted(nodes), waits) || ended {
			return nodes
		}
		if time.Since(start) > patience {
			c.t.Fatalf("Nodes still wait: %s\n%s", table(nodes), c.kcm.Log())
		}
	}
}

// refused are the Nodes for which kube-controller-manager has found no podCIDR since its start.
func (c *realCluster) refused() map[string]bool {
	c.t.Helper()
	list, err := c.Admin().CoreV1().Events("default").List(c.t.Context(),
		metav1.ListOptions{FieldSelector: "involvedObject.kind=Node,reason=CIDRNotAvailable"})
	c.must(err)
	out := map[string]bool{}
	for _, e := range list.Items {
		out[e.InvolvedObject.Name] = true
	}
	return out
}

// carryOut executes the remedy, and deletes Nodes as in docs/node-ipam.md: while kube-controller-manager is stopped;
// kubelets register them again without a podCIDR.
func (c *realCluster) carryOut(r report.Remedy) {
	c.t.Helper()
	change := changeOf(c.t, r)
	c.facts = change.facts(c.facts)
	nodes := c.nodes()
	c.stop()
	for _, command := range r.Commands {
		if strings.HasPrefix(command, "kubectl delete") {
			c.shell(c.t.TempDir(), command)
		}
	}
	c.must(c.start())
	for _, name := range change.recreate {
		n := nodes[name]
		n.PodCIDRs = nil
		c.create(n)
	}
	for _, command := range r.Commands {
		if strings.HasPrefix(command, "kubectl patch") {
			c.shell(c.t.TempDir(), command)
		}
	}
}

// shell runs a command in dir with the real kubectl.
func (c *realCluster) shell(dir, command string) {
	c.t.Helper()
	kubectl := filepath.Join(dir, "kubectl")
	script := "#!/bin/sh\nexec " + strings.Join(c.KubectlCommand(), " ") + ` "$@"` + "\n"
	c.must(os.WriteFile(kubectl, []byte(script), 0o755))
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err != nil {
		c.t.Fatalf("%s: %v\n%s", command, err, out)
	}
}

// Each kind of problem on the real kube-controller-manager: the diagnosis is correct, and each proposed remedy fixes
// it.
func TestKubeRemedies(t *testing.T) {
	for _, s := range stories() {
		t.Run(s.name, func(t *testing.T) {
			for i := range max(s.remedies, 1) { // each in a new cluster
				c := newRealCluster(t, s.facts, s.nodes)
				if err := c.start(); (err != nil) != s.deadKCM {
					t.Fatalf("kube-controller-manager: %v, want dead: %v", err, s.deadKCM)
				}
				if s.facts.Allocates == Yes {
					c.settled(false)
				}
				before := c.nodes()
				d := c.problem(s.kind)
				if len(d.Remedies) != s.remedies {
					t.Fatalf("%d remedies are given, want %d", len(d.Remedies), s.remedies)
				}
				if i == 0 {
					t.Log(d.Message())
				}
				if s.remedies > 0 {
					c.fixed(d, d.Remedies[i], before)
				}
				c.stop()
			}
		})
	}
}

// fixed executes the remedy and checks that it fixes the problem.
func (c *realCluster) fixed(d report.Finding, r report.Remedy, before map[string]inputs.Node) {
	c.t.Helper()
	c.carryOut(r)
	after := c.settled(true)
	if wrong := stillWrong(d, changeOf(c.t, r), c.facts, before, after); wrong != "" {
		c.t.Errorf("remedy %q: %s\nbefore: %s\nafter: %s", r.Text, wrong, table(before), table(after))
	}
}

// problem is the first finding of the kind.
func (c *realCluster) problem(kind string) report.Finding {
	c.t.Helper()
	all := FindAll(c.nodes(), c.facts, time.Now().Add(time.Hour))
	for _, d := range all {
		if d.Kind == kind {
			return d
		}
	}
	c.t.Fatalf("no problem of kind %s in %+v", kind, all)
	return report.Finding{}
}

type story struct {
	name     string
	kind     string
	facts    Facts
	nodes    map[string]inputs.Node
	deadKCM  bool // kube-controller-manager does not start
	remedies int
}

func stories() []story {
	with := func(f Facts, change func(*Facts)) Facts { change(&f); return f }
	off := func(f *Facts) { f.Allocates = No }
	wide := allocatorWith(rangeOf("10.244.0.0/16", 24))
	dual := allocatorWith(rangeOf("10.244.0.0/23", 24), rangeOf("fd00:10:244::/62", 64))
	masks := nodeMap(node(1, "first", "10.240.0.0/16"), node(2, "second", "10.244.0.0/24"), node(3, "third", "10.244.0.0/24"))
	return []story{
		{"range exhausted", Exhausted, allocatorWith(rangeOf("192.168.0.0/22", 24)), cut("192.168.0.0/22", 24, 0, 10), false, 1},
		{"a longer mask helps as well", Exhausted, allocatorWith(rangeOf("10.0.0.0/22", 24)),
			nodeMap(node(1, "a", "10.0.0.0/24"), node(2, "b", "10.0.1.0/24"), node(3, "c", "10.0.2.0/25"), node(4, "d", "10.0.3.0/25"),
				node(5, "e"), node(6, "f")), false, 2},
		{"IPv6", Exhausted, allocatorWith(rangeOf("fd00:10:244::/63", 64)), cut("fd00:10:244::/63", 64, 0, 5), false, 1},
		{"dual stack", Exhausted, dual, cut("10.244.0.0/23", 24, 0, 5), false, 1},
		{"the Services take the range", Exhausted, with(allocatorWith(rangeOf("192.168.0.0/22", 24)), func(f *Facts) {
			f.Services, f.LeftOut = prefixes("192.168.0.0/22"), prefixes("192.168.0.0/22")
		}), cut("192.168.0.0/22", 24, 0, 2), false, 0},
		{"off", AllocatorOff, with(wide, off), cut("10.244.0.0/16", 24, 0, 3), false, 1},
		{"off, with manual podCIDRs", AllocatorOff, with(allocatorWith(), off), cut("10.10.0.0/16", 24, 2, 3), false, 1},
		{"kubeadm without --pod-network-cidr", NoPodNetworkCIDR, with(allocatorWith(), func(f *Facts) { off(f); f.Kubeadm = true }),
			cut("10.244.0.0/16", 24, 0, 3), false, 1},
		{"duplicate", Duplicate, wide, nodeMap(node(1, "a", "10.244.7.0/24"), node(2, "b", "10.244.7.0/24"), node(3, "c", "10.244.8.0/24")),
			false, 1},
		{"duplicate, allocator off", Duplicate, with(wide, off), nodeMap(node(1, "a", "10.244.7.0/24"), node(2, "b", "10.244.7.0/24")),
			false, 1},
		{"duplicate in a full range", Duplicate, allocatorWith(rangeOf("10.244.0.0/24", 25)), nodeMap(node(1, "a", "10.244.0.0/25"),
			node(2, "b", "10.244.0.0/25"), node(3, "c", "10.244.0.128/25")), false, 1},
		{"overlap after a change of masks", Duplicate, allocatorWith(rangeOf("10.240.0.0/12", 24)), masks, false, 1},
		{"the whole range manually, twice", Overlap, wide, nodeMap(node(1, "a", "10.244.1.0/24"), node(2, "b", "10.244.0.0/16"),
			node(3, "c", "10.244.0.0/16")), false, 1},
		{"overlap with the Services", Overlap, allocatorWith(rangeOf("10.96.0.0/11", 24)), nodeMap(node(1, "a", "10.96.3.0/24")), false, 1},
		{"overlap with the Services, unknown to the allocator", Overlap, with(allocatorWith(rangeOf("10.96.0.0/11", 24)),
			func(f *Facts) { f.LeftOut = nil }), nodeMap(node(1, "a"), node(2, "b")), false, 1},
		{"out of range", NotRunning, wide, nodeMap(node(1, "a", "10.245.0.0/24"), node(2, "b")), true, 1},
		{"out of range, no Node waits", OutOfRange, wide, nodeMap(node(1, "a", "10.245.0.0/24"), node(2, "b", "10.244.0.0/24")), true, 2},
		{"dual-stack node in a cluster of one family", OutOfRange, wide, nodeMap(node(1, "a", "10.244.0.0/24", "fd00::/64")), true, 1},
	}
}

// Random clusters on the real kube-controller-manager: fewer than with the naive implementation, which this validates.
func TestKubeRandomRemedies(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	proposed := map[string]int{}
	for tried := 0; tried < 8; {
		f, nodes := randomCluster(random)
		f.Allocates = Yes
		c := newRealCluster(t, f, nodes)
		if err := c.start(); err == nil {
			c.settled(false)
		}
		before := c.nodes()
		problems := slices.DeleteFunc(FindAll(before, f, time.Now().Add(time.Hour)),
			func(d report.Finding) bool { return len(d.Remedies) == 0 })
		if len(problems) == 0 {
			c.stop()
			continue
		}
		d := problems[random.IntN(len(problems))]
		if c.kcm.Ended() && d.Kind != OutOfRange && d.Kind != NotRunning {
			c.stop()
			continue // it would not start again
		}
		tried++
		proposed[d.Kind]++
		r := d.Remedies[random.IntN(len(d.Remedies))]
		c.carryOut(r)
		if wrong := stillWrong(d, changeOf(t, r), c.facts, before, c.settled(false)); wrong != "" {
			t.Fatalf("%s\nremedy: %+v\nbut: %s\nfacts: %+v\nbefore: %s\nafter: %s\n%s", d.Message(), r, wrong, f, table(before),
				table(c.nodes()), c.kcm.Log())
		}
		c.stop()
	}
	t.Log("remedies tried", proposed)
}
