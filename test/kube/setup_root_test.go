// Package kube holds the tests that need agents in a real Kubernetes cluster: one lab (package lab) with a real control
// plane, kube-proxy and CNI calls, for all of them. Each test leaves the cluster as it found it: healthy, and without
// Pods. The lab is identified by its directory and ends with the tests.
package kube

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-cni/fairlead/test/lab/controlplane"
	"github.com/fairlead-cni/fairlead/test/lab/host"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/lab/vswitch"
)

// bed is the cluster.
type bed struct {
	*lab.Lab
	plane  controlplane.Plane
	client *kubernetes.Clientset
}

// shared is the lab of this run, nil without root, and binDir has the programs.
var (
	shared *lab.Lab
	binDir string
)

func TestMain(m *testing.M) { labtest.Main(withLab{m}, &binDir) }

// withLab runs all tests in one lab.
type withLab struct{ m *testing.M }

func (w withLab) Run() int {
	if binDir == "" {
		return w.m.Run()
	}
	dir, err := os.MkdirTemp("", "kube-")
	if err == nil {
		defer os.RemoveAll(dir)
		shared, err = lab.Up(context.Background(), lab.Options{Dir: filepath.Join(dir, "lab"), BinDir: binDir,
			Cluster: lab.Kube, Datapath: vswitch.Netdev, Progress: func(step string) { fmt.Fprintln(os.Stderr, "lab:", step) }})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := w.m.Run()
	if err := lab.Down(context.Background(), shared.Dir(), nil); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// cluster returns the bed, and ensures that the test leaves all components running and no Pods. When the test fails,
// the agents' logs of its time are shown.
func cluster(t *testing.T) *bed {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED, NOT TESTED: a lab needs root")
	}
	b := &bed{Lab: shared}
	var err error
	b.plane, err = shared.Plane()
	must(t, err)
	b.client, err = shared.Client()
	must(t, err)
	begun := map[string]int{}
	for _, node := range b.Nodes() {
		begun[node] = len(b.log(t, node))
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
		defer cancel()
		for _, part := range controlplane.Parts() { // of a test that failed midway
			if t.Failed() {
				t.Logf("the end of the log of %s:\n%s", part, b.plane.Tail(part, 30))
			}
			if err := b.plane.Resume(part); err != nil {
				t.Error(err)
			}
		}
		if err := b.plane.StartAll(ctx, func(controlplane.Part) {}); err != nil {
			t.Error(err)
		}
		if err := b.tidy(ctx); err != nil {
			t.Error(err)
		}
		if err := b.WaitPods(ctx); err != nil {
			t.Error(err)
		}
		for _, node := range b.Nodes() {
			if log := b.log(t, node); t.Failed() {
				t.Logf("the log of %s's agents:\n%s", node, log[begun[node]:])
			}
		}
	})
	return b
}

// tidy requests the deletion of all Pods and Services, and of the Node guest. The Service kubernetes stays: the API
// server would recreate it after some seconds.
func (b *bed) tidy(ctx context.Context) error {
	objects, err := b.Objects()
	if err != nil {
		return err
	}
	others := metav1.ListOptions{FieldSelector: "metadata.name!=kubernetes"}
	return errors.Join(b.client.CoreV1().Pods("default").DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}),
		objects.Resource("services").Namespace("default").DeleteCollection(ctx, metav1.DeleteOptions{}, others),
		b.forgetNode(ctx, "guest"))
}

// forgetNode deletes a Node, if there is one.
func (b *bed) forgetNode(ctx context.Context, name string) error {
	err := b.client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// clusterIPs are those of a Service.
func (b *bed) clusterIPs(t *testing.T, service string) []string {
	t.Helper()
	s, err := b.client.CoreV1().Services("default").Get(t.Context(), service, metav1.GetOptions{})
	must(t, err)
	return s.Spec.ClusterIPs
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wait polls until done returns "", and fails the test with the last result after limit, or later (labtest.Limit). It
// returns how long it took.
func wait(t *testing.T, limit time.Duration, done func() (missing string)) time.Duration {
	t.Helper()
	limit = labtest.Limit(limit)
	for start := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		missing := done()
		if missing == "" {
			return time.Since(start)
		}
		if time.Since(start) > limit {
			t.Fatalf("not after %s: %s", limit, missing)
		}
	}
}

func (b *bed) log(t *testing.T, node string) string {
	t.Helper()
	path, err := b.AgentLog(node)
	must(t, err)
	data, err := os.ReadFile(path)
	must(t, err)
	return string(data)
}

// podYAML is a Pod of the namespace default, with the label app.
func podYAML(name, node string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s, labels: {app: %s}}\n"+
		"spec: {nodeName: %s, containers: [{name: main, image: none}]}\n", name, name[:1], node)
}

// addPods creates Pods, each in the form "name@node", and waits until they run. The label app is the name's first
// letter.
func (b *bed) addPods(t *testing.T, pods ...string) {
	t.Helper()
	var manifests []string
	for _, p := range pods {
		name, node, _ := strings.Cut(p, "@")
		manifests = append(manifests, podYAML(name, node))
	}
	_, err := b.Apply("test", []byte(strings.Join(manifests, "---\n")))
	must(t, err)
	must(t, b.WaitPods(labtest.Within(t, 40*time.Second)))
}

// pod locates a pod: its node, its network namespace there and its addresses.
type pod struct {
	name  string
	host  host.Host
	netns string
	ips   []netip.Addr
}

func (b *bed) pod(t *testing.T, name string) pod {
	t.Helper()
	rec, err := b.Records().Load("default/" + name)
	if err != nil || rec == nil || rec.Netns == "" {
		t.Fatalf("pod %s has no sandbox: %+v, %v", name, rec, err)
	}
	h, err := b.Host(rec.Node)
	must(t, err)
	p := pod{name: name, host: h, netns: rec.Netns}
	for _, ip := range rec.IPs {
		p.ips = append(p.ips, netip.MustParseAddr(ip))
	}
	return p
}

// ping expects a reply from every address of the pod to within limit.
func (b *bed) ping(t *testing.T, from, to string, limit time.Duration) {
	t.Helper()
	for _, ip := range b.pod(t, to).ips {
		wait(t, limit, func() string {
			if _, err := b.PodExec(labtest.Within(t, 10*time.Second), "default/"+from, "ping", "-c1", "-W2", ip.String()); err != nil {
				return err.Error()
			}
			return ""
		})
	}
}

// follows creates and deletes a Node, and expects the agents to add and remove a route to its podCIDRs: their watches
// work.
func (b *bed) follows(t *testing.T) {
	t.Helper()
	b.endBackOff(t)
	b.makeGuest(t)
	b.followsGuest(t)
}

// endBackOff restarts Kubernetes' own clients after an outage of the API server. After several outages they back off
// for up to a minute, in which Endpoints do not change and Services are not programmed. They are not under test.
func (b *bed) endBackOff(t *testing.T) {
	t.Helper()
	ctx := labtest.Within(t, time.Minute)
	must(t, b.plane.Restart(ctx, controlplane.KCM, nil))
	must(t, b.RestartKubeProxies(ctx))
}

// makeGuest creates a Node that is not a node of the lab.
func (b *bed) makeGuest(t *testing.T) {
	t.Helper()
	guest := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "guest"},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: "192.168.77.99"}, {Type: corev1.NodeInternalIP, Address: "fd77::99"}}}}
	_, err := b.client.CoreV1().Nodes().Create(t.Context(), guest, metav1.CreateOptions{})
	must(t, err)
}

// followsGuest is follows for the existing guest.
func (b *bed) followsGuest(t *testing.T) {
	t.Helper()
	const name = "guest"
	nodes := b.client.CoreV1().Nodes()
	var podCIDR string
	wait(t, time.Minute, func() string {
		n, err := nodes.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if podCIDR = n.Spec.PodCIDR; podCIDR == "" {
			return name + " has no podCIDR"
		}
		return ""
	})
	b.routed(t, podCIDR, true)
	must(t, nodes.Delete(t.Context(), name, metav1.DeleteOptions{}))
	b.routed(t, podCIDR, false)
}

func (b *bed) routed(t *testing.T, podCIDR string, want bool) {
	t.Helper()
	for _, node := range b.Nodes() {
		wait(t, 90*time.Second, func() string {
			out, err := b.NodeExec(labtest.Within(t, 10*time.Second), node, "ip", "route", "show", "match", podCIDR, "dev", "fairlead-gw0")
			if err != nil {
				return err.Error()
			}
			if got := out != ""; got != want {
				return fmt.Sprintf("%s, a route to %s: %v, want %v", node, podCIDR, got, want)
			}
			return ""
		})
	}
}

// cniCosts is the number of packets that cniWhileAway may cost: on the userspace datapath adding or removing an
// interface may cost one tunnel packet (docs/restarts.md), seen in 6 of 100 changes with a packet every 2.5 ms. follows
// costs none.
const cniCosts = 1

// steady pings from one pod to another, ten times a second, until the returned function is called, which expects that
// all pings sent before the last answered one were answered, except mayLose, no two of them in a row.
func (b *bed) steady(t *testing.T, from, to string, mayLose int) (stop func()) {
	t.Helper()
	b.ping(t, from, to, 20*time.Second)
	cmd := b.PodCommand(context.Background(), "default/"+from, "ping", "-i0.1", "-W60", "-n", b.pod(t, to).ips[0].String())
	out := &lines{}
	cmd.Stdout, cmd.Stderr = out, out
	must(t, cmd.Start())
	ended := false
	end := func() error {
		ended = true
		_ = cmd.Process.Signal(os.Interrupt) // ping(8) then prints what it has counted
		return cmd.Wait()
	}
	t.Cleanup(func() {
		if !ended { // the test failed midway
			_ = end()
		}
	})
	return func() {
		t.Helper()
		before := out.answered()
		wait(t, time.Minute, func() string { // what was lost is known when a later one is answered
			if now := out.answered(); len(now) < len(before)+3 {
				return fmt.Sprintf("no ping is answered any more, after %d", len(before))
			}
			return ""
		})
		if err := end(); err != nil {
			t.Errorf("a ping from %s to %s: %v\n%s", from, to, err, out.text())
		}
		answered := out.answered()
		last, lost, gap := slices.Max(answered), 0, 0
		for n := 1; n < last; n++ {
			if gap++; slices.Contains(answered, n) {
				gap = 0
				continue
			}
			if lost++; gap > 1 || lost > mayLose {
				t.Errorf("a ping from %s to %s: of those up to number %d %d are not answered\n%s", from, to, n, lost, out.text())
				return
			}
		}
		if slices.Sort(answered); len(slices.Compact(answered)) != last-lost {
			t.Errorf("a ping from %s to %s is answered twice:\n%s", from, to, out.text())
		}
	}
}

// lines is the output of a running program.
type lines struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// answered are the sequence numbers of the answered pings.
func (l *lines) answered() (all []int) {
	for line := range strings.Lines(l.text()) {
		if _, after, ok := strings.Cut(line, " icmp_seq="); ok && strings.Contains(line, " bytes from ") && strings.HasSuffix(line, "\n") {
			text, _, _ := strings.Cut(after, " ")
			if n, err := strconv.Atoi(text); err == nil {
				all = append(all, n)
			}
		}
	}
	return all
}
