// Package pools holds the tests of addresses of IPPools in a real cluster: what annotations get, when they are
// rejected, and that no address is lost or allocated twice, whatever fails. All tests use one lab in mode bridge with a
// Kubernetes API (package lab), which is identified by its directory and ends with them. Each has IPPools and
// Namespaces of its own, and removes its pods.
package pools

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/test/lab/controlplane"
	"github.com/fairlead-cni/fairlead/test/lab/lab"
	"github.com/fairlead-cni/fairlead/test/lab/labtest"
	"github.com/fairlead-cni/fairlead/test/lab/sandbox"
	"github.com/fairlead-cni/fairlead/test/lab/underlay"
	"github.com/fairlead-cni/fairlead/test/lab/vswitch"
	"github.com/fairlead-cni/fairlead/test/ovstest"
)

// node runs most pods.
const node = "node1"

// bed is the cluster.
type bed struct {
	*lab.Lab
	plane  controlplane.Plane
	client *kubernetes.Clientset
	// All of the cluster.
	ippools, ipallocations dynamic.ResourceInterface
}

// shared is the lab of this run, nil without root.
var shared *lab.Lab

func TestMain(m *testing.M) {
	var binDir string
	labtest.Main(withLab{m, &binDir}, &binDir)
}

// withLab runs all tests in one lab.
type withLab struct {
	m      *testing.M
	binDir *string
}

func (w withLab) Run() int {
	if *w.binDir == "" {
		return w.m.Run()
	}
	dir, err := os.MkdirTemp("", "pools-")
	if err == nil {
		defer os.RemoveAll(dir)
		shared, err = lab.Up(context.Background(), lab.Options{Dir: filepath.Join(dir, "lab"), BinDir: *w.binDir,
			Cluster: lab.Kube, Mode: underlay.Bridge, Datapath: vswitch.Datapath(ovstest.Netdev), Config: []byte("ipam: {coolingPeriod: 2s}"),
			Progress: func(step string) { fmt.Fprintln(os.Stderr, "lab:", step) }})
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

// cluster returns the bed, and ensures that the test leaves the API server and the agents running, and neither pods nor
// pools. When the test fails, the agents' logs of its time are shown.
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
	objects, err := shared.Objects()
	must(t, err)
	b.ippools = objects.Resource("ippools.v1beta1.crd.antrea.io")
	b.ipallocations = objects.Resource("ipallocations.v1alpha1.ipam.fairlead.dev")
	begun := map[string]int{}
	for _, n := range b.Nodes() {
		must(t, b.WaitReady(labtest.Within(t, time.Minute), n))
		begun[n] = len(b.log(t, n))
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		b.tidy(ctx, t)
		for _, n := range b.Nodes() {
			if log := b.log(t, n); t.Failed() {
				t.Logf("the log of %s's agents:\n%s", n, log[begun[n]:])
			}
		}
	})
	return b
}

func (b *bed) tidy(ctx context.Context, t *testing.T) {
	t.Helper()
	if err := b.plane.Resume(controlplane.APIServer); err != nil {
		t.Error(err)
	}
	if err := b.plane.StartAll(ctx, func(controlplane.Part) {}); err != nil {
		t.Error(err)
	}
	for _, n := range b.Nodes() {
		if s, err := b.AgentState(ctx, n); err != nil || s.PID == 0 {
			if err := b.AgentStart(ctx, n); err != nil {
				t.Error(err)
			}
		}
	}
	for _, namespace := range []string{"default", "annotated"} {
		if err := b.deletePods(ctx, namespace); err != nil {
			t.Error(err)
		}
	}
	if err := b.WaitPods(ctx); err != nil {
		t.Error(err)
	}
	for _, kind := range []dynamic.ResourceInterface{b.ippools, b.ipallocations} {
		if err := deleteAll(ctx, kind); err != nil {
			t.Error(err)
		}
	}
}

// deletePods requests the deletion of all pods of a Namespace.
func (b *bed) deletePods(ctx context.Context, namespace string) error {
	return b.client.CoreV1().Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
}

// deleteAll requests the deletion of all objects of a kind.
func deleteAll(ctx context.Context, kind dynamic.ResourceInterface) error {
	return kind.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
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
	for start := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		missing := done()
		if missing == "" {
			return
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

func (b *bed) apply(t *testing.T, manifests ...string) {
	t.Helper()
	_, err := b.Apply("test", []byte(strings.Join(manifests, "\n---\n")))
	must(t, err)
}

// poolYAML is an IPPool of a VLAN of the lab: the addresses from first to last, which are values of the last byte, or
// group.
func poolYAML(name string, family int, vlan uint16, first, last string) string {
	gateway := underlay.Dual.VLANGatewayAddrs(vlan)[0]
	if family == 6 {
		gateway = underlay.Dual.VLANGatewayAddrs(vlan)[1]
	}
	net := strings.TrimSuffix(gateway.Addr().String(), "1")
	return fmt.Sprintf("apiVersion: crd.antrea.io/v1beta1\nkind: IPPool\nmetadata: {name: %s}\nspec:\n"+
		"  ipRanges: [{start: \"%[2]s%[3]s\", end: \"%[2]s%[4]s\"}]\n"+
		"  subnetInfo: {gateway: \"%[5]s\", prefixLength: %[6]d, vlan: %[7]d}\n",
		name, net, first, last, gateway.Addr(), gateway.Bits(), vlan)
}

// podYAML is a Pod with annotations, each "key: value"; the keys ippools and pod-ips are written without their prefix.
func podYAML(name, node string, annotations ...string) string {
	namespace := "default"
	if ns, short, named := strings.Cut(name, "/"); named {
		namespace, name = ns, short
	}
	var long []string
	for _, a := range annotations {
		long = append(long, "ipam.antrea.io/"+a)
	}
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata:\n  name: %s\n  namespace: %s\n  annotations: {%s}\n"+
		"spec: {nodeName: %s, containers: [{name: main, image: none}]}\n", name, namespace, strings.Join(long, ", "), node)
}

// record is the runtime's record of a pod.
func (b *bed) record(t *testing.T, pod string) *sandbox.Record {
	t.Helper()
	if !strings.Contains(pod, "/") {
		pod = "default/" + pod
	}
	rec, err := b.Records().Load(pod)
	must(t, err)
	if rec == nil {
		rec = &sandbox.Record{}
	}
	return rec
}

// running waits until a pod runs and returns its addresses.
func (b *bed) running(t *testing.T, pod string) []netip.Addr {
	t.Helper()
	var rec *sandbox.Record
	wait(t, 40*time.Second, func() string {
		if rec = b.record(t, pod); rec.State != sandbox.Running {
			return fmt.Sprintf("%s is %s: %s", pod, rec.State, rec.LastError)
		}
		return ""
	})
	var out []netip.Addr
	for _, ip := range rec.IPs {
		out = append(out, netip.MustParseAddr(ip))
	}
	return out
}

// remove deletes pods and waits until they are gone.
func (b *bed) remove(t *testing.T, pods ...string) {
	t.Helper()
	for _, p := range pods {
		namespace, name, named := strings.Cut(p, "/")
		if !named {
			namespace, name = "default", p
		}
		must(t, b.client.CoreV1().Pods(namespace).Delete(labtest.Within(t, 20*time.Second), name, metav1.DeleteOptions{}))
	}
	b.gone(t, 30*time.Second, pods...)
}

// gone waits until pods have neither a sandbox nor an object. An apply of the same name would change an object that is
// terminating, and be lost with it.
func (b *bed) gone(t *testing.T, limit time.Duration, pods ...string) {
	t.Helper()
	wait(t, limit, func() string {
		all, err := b.PodStates()
		must(t, err)
		for _, s := range all {
			if slices.Contains(pods, s.Pod) || slices.Contains(pods, strings.TrimPrefix(s.Pod, "default/")) {
				return fmt.Sprintf("%s is still there: %s %s", s.Pod, s.State, s.LastError)
			}
		}
		return ""
	})
}

// allocations are all in the API.
func (b *bed) allocations(t *testing.T) []api.IPAllocation {
	t.Helper()
	found, err := b.ipallocations.List(labtest.Within(t, 20*time.Second), metav1.ListOptions{})
	must(t, err)
	data, err := found.MarshalJSON()
	must(t, err)
	var list struct{ Items []api.IPAllocation }
	must(t, json.Unmarshal(data, &list))
	return list.Items
}

// held are the addresses of pools that pods hold, as "ADDRESS namespace/name", sorted.
func (b *bed) held(t *testing.T) []string {
	t.Helper()
	out := []string{}
	for _, a := range b.allocations(t) {
		if a.Spec.Phase == api.PhaseAllocated {
			out = append(out, a.Spec.Address+" "+a.Spec.Owner.Namespace+"/"+a.Spec.Owner.Name)
		}
	}
	slices.Sort(out)
	return out
}

// holdsExactly waits until the allocations are those of the running bridged pods.
func (b *bed) holdsExactly(t *testing.T, limit time.Duration, pods ...string) {
	t.Helper()
	wait(t, limit, func() string { return b.heldWrongly(t, pods...) })
}

// holdsNow expects at once what holdsExactly waits for.
func (b *bed) holdsNow(t *testing.T, pods ...string) {
	t.Helper()
	if wrong := b.heldWrongly(t, pods...); wrong != "" {
		t.Fatal(wrong)
	}
}

// heldWrongly says how the allocations differ from those of the running bridged pods.
func (b *bed) heldWrongly(t *testing.T, pods ...string) string {
	t.Helper()
	want := []string{}
	for _, p := range pods {
		rec := b.record(t, p)
		for _, ip := range rec.IPs {
			want = append(want, ip+" "+rec.Pod())
		}
	}
	slices.Sort(want)
	if got := b.held(t); !slices.Equal(got, want) {
		return fmt.Sprintf("held are %v, want %v", got, want)
	}
	return ""
}

// event waits until the Warnings about a pod have all these words. Others may come first, such as about a pool that is
// not known yet.
func (b *bed) event(t *testing.T, pod, reason string, words ...string) {
	t.Helper()
	wait(t, 30*time.Second, func() string {
		messages := b.events(t, pod, reason)
		for _, w := range words {
			if !strings.Contains(messages, w) {
				return fmt.Sprintf("no Event %s on %s with %q: %q; the runtime says %s", reason, pod, w, messages, b.record(t, pod).LastError)
			}
		}
		return ""
	})
}

// events are the messages of the Warnings about a pod.
func (b *bed) events(t *testing.T, pod, reason string) string {
	t.Helper()
	namespace, name, named := strings.Cut(pod, "/")
	if !named {
		namespace, name = "default", pod
	}
	list, err := b.client.CoreV1().Events(namespace).List(labtest.Within(t, 20*time.Second),
		metav1.ListOptions{FieldSelector: "involvedObject.kind=Pod,reason=" + reason + ",involvedObject.name=" + name})
	must(t, err)
	var out []string
	for _, e := range list.Items {
		out = append(out, e.Message)
	}
	return strings.Join(out, "; ")
}
