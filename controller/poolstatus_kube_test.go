package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/ipam/allocator"
	"github.com/fairlead-cni/fairlead/ipam/pool"
	"github.com/fairlead-cni/fairlead/test/apitest"
	"github.com/fairlead-cni/fairlead/test/chart"
)

// shared is the API server of this package's tests: see TestMain.
var shared apitest.Shared

func TestMain(m *testing.M) {
	if where := os.Getenv(childServer); where != "" {
		controlForEver(where)
	}
	code := m.Run()
	if err := shared.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// patience is the timeout for something that takes a second or two on an idle machine.
const patience = time.Minute

type cluster struct {
	t     testing.TB
	admin dynamic.Interface
	token string // the controller's
	s     *apitest.Server
	url   string // where the controller serves HTTP
	// lease is the duration of its controllers' Lease; 0: that of short.
	lease time.Duration
}

func newCluster(t testing.TB) *cluster {
	t.Helper()
	s := shared.Get(t)
	// With read access to KubeVirt, which is not installed.
	all, _, err := chart.Template("../build/charts/fairlead", "kube-system", "rbac.kubevirt=true")
	if err != nil {
		t.Fatal(err)
	}
	for _, component := range []string{"crds", "rbac,app.kubernetes.io/name=fairlead-controller"} {
		if err := s.ApplyManifest(t.Context(), []byte(all), "app.kubernetes.io/component="+component); err != nil {
			t.Fatal(err)
		}
	}
	token, err := s.Token(t.Context(), "fairlead-controller")
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, s: s, token: token}
	c.admin = c.client(apitest.AdminToken)
	return c
}

// options are those of a controller with short intervals that does not serve HTTP.
func (c *cluster) options(client dynamic.Interface) Options {
	every := short()
	if c.lease > 0 {
		every.LeaseDuration, every.LeaseRenew = c.lease, c.lease/2
	}
	return Options{Client: client, Kubernetes: c.kubernetes(c.token), Intervals: every, Log: logr.Discard()}
}

func (c *cluster) client(token string) dynamic.Interface {
	c.t.Helper()
	client, err := dynamic.NewForConfig(c.config(token))
	if err != nil {
		c.t.Fatal(err)
	}
	return client
}

// start starts a controller with the shipped RBAC rules, and returns its URL.
func (c *cluster) start(ipam api.NodeIPAM) (url string) {
	c.t.Helper()
	ctx, cancel := context.WithCancel(c.t.Context())
	url, done := c.startIn(ctx, ipam, nil)
	c.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			c.t.Error(err)
		}
	})
	return url
}

// startIn starts one that ends with ctx; done then receives its error.
func (c *cluster) startIn(ctx context.Context, ipam api.NodeIPAM, other func(context.Context) (string, error)) (
	url string, done <-chan error) {
	c.t.Helper()
	return c.startWith(ctx, api.ControllerConfig{NodeIPAM: ipam}, other)
}

func (c *cluster) startWith(ctx context.Context, cfg api.ControllerConfig,
	other func(context.Context) (string, error)) (url string, done <-chan error) {
	c.t.Helper()
	port, err := apitest.FreePort()
	must(c.t, err)
	ended := make(chan error, 1)
	cfg.APIAddress, cfg.APIPort, cfg.EnablePrometheusMetrics = netip.MustParseAddr("127.0.0.1"), port, true
	if cfg.PoolWarningPercent == 0 {
		cfg.PoolWarningPercent = 80
	}
	o := c.options(c.client(c.token))
	o.OtherAllocator, o.Config = other, cfg
	go func() { ended <- Run(ctx, o) }()
	return fmt.Sprintf("http://127.0.0.1:%d", port), ended
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (c *cluster) kubernetes(token string) kubernetes.Interface {
	c.t.Helper()
	client, err := kubernetes.NewForConfig(c.config(token))
	if err != nil {
		c.t.Fatal(err)
	}
	return client
}

func (c *cluster) config(token string) *rest.Config {
	return &rest.Config{Host: c.s.URL, BearerToken: token, QPS: 1000, Burst: 1000,
		TLSClientConfig: rest.TLSClientConfig{CAFile: c.s.CA()}}
}

func (c *cluster) pools() dynamic.ResourceInterface { return c.admin.Resource(api.PoolResource) }

func (c *cluster) create(p *api.IPPool) {
	c.t.Helper()
	p.APIVersion, p.Kind, p.Generation = api.PoolGroup+"/"+api.PoolVersion, api.PoolKind, 0
	text, err := json.Marshal(p)
	var u unstructured.Unstructured
	if err == nil {
		err = u.UnmarshalJSON(text)
	}
	if err == nil {
		_, err = c.pools().Create(c.t.Context(), &u, metav1.CreateOptions{})
	}
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		ctx := context.Background() // the test's has ended
		err := c.pools().Delete(ctx, p.Name, metav1.DeleteOptions{})
		if err == nil {
			_, err = c.pools().Patch(ctx, p.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
				metav1.PatchOptions{})
		}
		if err != nil && !apierrors.IsNotFound(err) {
			c.t.Error(err)
		}
	})
}

func (c *cluster) get(name string) (api.IPPool, error) {
	var p api.IPPool
	u, err := c.pools().Get(c.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		return p, err
	}
	text, err := u.MarshalJSON()
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	return p, err
}

// until waits until a pool has the status want.
func (c *cluster) until(name, want string) api.IPPool {
	c.t.Helper()
	var line string
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		p, err := c.get(name)
		if err != nil {
			c.t.Fatal(err)
		}
		if p.Status.Usage == nil {
			continue
		}
		if line = said(p.Status); strings.HasPrefix(line, want) {
			return p
		}
	}
	c.t.Fatalf("pool %s says %s, want %s", name, line, want)
	return api.IPPool{}
}

func (c *cluster) allocator(cooling time.Duration) *allocator.Allocator {
	return allocator.New(allocator.Config{
		Store: allocation.NewKubernetes(c.admin), Node: "n1", Cooling: cooling, Log: logr.Discard()})
}

func (c *cluster) allocate(a *allocator.Allocator, pod string, p *api.IPPool) {
	c.t.Helper()
	read, err := pool.Read(*p)
	if err == nil {
		_, err = a.Allocate(c.t.Context(), allocator.Request{Pools: []pool.Pool{read}, Owner: owner(pod)})
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) release(a *allocator.Allocator, pod string) {
	c.t.Helper()
	if err := a.Release(c.t.Context(), owner(pod)); err != nil {
		c.t.Fatal(err)
	}
}

func owner(pod string) api.AllocationOwner {
	return api.AllocationOwner{Name: pod, Namespace: "default", ContainerID: pod, IfName: "eth0", Network: "net"}
}

// One controller serves all of these, until there is a second one.
func TestKubePools(t *testing.T) {
	c := newCluster(t)
	url := c.start(api.NodeIPAM{})
	for _, test := range []struct {
		name string
		run  func(*testing.T, *cluster)
	}{{"status", checkStatus}, {"conditions", checkConditions}, {"deleted", checkDeleted}, {"seldom written", checkSeldom}} {
		t.Run(test.name, func(t *testing.T) { test.run(t, &cluster{t, c.admin, c.token, c.s, url, 0}) })
	}
}

// A deleted pool stays while it has an address that an agent has just allocated and no cache has yet.
func TestKubePoolOfALateAllocation(t *testing.T) {
	c := newCluster(t)
	p := poolOf("late", "10.2.0.1", "10.2.0.3")
	p.Finalizers = []string{api.PoolFinalizer}
	c.create(p)
	client, a := c.client(c.token), c.allocator(0)
	s := &poolStatus{client: client.Resource(api.PoolResource), allocations: client.Resource(api.AllocationResource),
		log: logr.Discard()}
	stays := func(when string, want bool) {
		t.Helper()
		now, err := c.get("late")
		must(t, err)
		must(t, s.removeFinalizer(t.Context(), &now))
		now, err = c.get("late")
		must(t, err)
		if got := slices.Contains(now.Finalizers, api.PoolFinalizer); got != want {
			t.Errorf("%s: it has the finalizer: %t, want %t", when, got, want)
		}
	}
	c.allocate(a, "a", p)
	stays("an address is allocated", true)
	c.release(a, "a")
	stays("none is", false)
}

// A pool's status follows its pods' allocations, and Antrea's fields in it are preserved.
func checkStatus(t *testing.T, c *cluster) {
	p := poolOf("small", "10.2.0.1", "10.2.0.3")
	c.create(p)
	theirs := []byte(`{"status": {"ipAddresses": [{"ipAddress": "10.2.0.1", "phase": "Allocated"}]}}`)
	if _, err := c.pools().Patch(t.Context(), "small", types.MergePatchType, theirs, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	c.until("small", "0/3 [10.2.0.1-10.2.0.3]")
	a := c.allocator(time.Second)
	c.allocate(a, "a", p)
	c.until("small", "1/3 [")
	c.allocate(a, "b", p)
	c.allocate(a, "c", p)
	c.until("small", "3/3 []; Exhausted AllInUse: 3 of 3 addresses are in use")
	c.untilEvent("small", "PoolExhausted", "3 of 3 addresses are in use. Extend spec.ipRanges")
	c.untilEvent("small", "PoolFilling", "3 of 3 addresses are in use, 80 percent or more")
	c.release(a, "b")
	// An address whose cooling is over is free again, even if no pod needs it.
	got := c.until("small", "2/3 [10.2.0.")
	if string(got.Status.IPAddresses) != `[{"ipAddress":"10.2.0.1","phase":"Allocated"}]` {
		t.Errorf("status.ipAddresses is %s", got.Status.IPAddresses)
	}
	metrics := c.fetch(c.url + "/metrics")
	for _, want := range []string{`fairlead_pool_addresses{pool="small"} 3`, `fairlead_pool_ready{pool="small"} 1`} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no %s in the metrics", want)
		}
	}
	if ok := c.fetch(c.url + "/healthz"); ok != "ok\n" {
		t.Errorf("/healthz: %q", ok)
	}
	c.release(a, "a")
	c.release(a, "c")
}

func (c *cluster) fetch(url string) string {
	c.t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		c.t.Fatalf("%s: %s: %s %v", url, resp.Status, body, err)
	}
	return string(body)
}

// untilEvent waits for a Warning about a pool with this reason, whose message starts with message.
func (c *cluster) untilEvent(pool, reason, message string) {
	c.t.Helper()
	list := &corev1.EventList{}
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		var err error
		list, err = c.kubernetes(apitest.AdminToken).CoreV1().Events(metav1.NamespaceDefault).List(c.t.Context(),
			metav1.ListOptions{FieldSelector: "involvedObject.kind=" + api.PoolKind + ",involvedObject.name=" + pool})
		must(c.t, err)
		for _, e := range list.Items {
			if e.Reason == reason && e.Type == corev1.EventTypeWarning && strings.HasPrefix(e.Message, message) {
				return
			}
		}
	}
	c.t.Errorf("no Event %s of pool %s says %q: %+v", reason, pool, message, list.Items)
}

// A pool's conditions report what is wrong with it, with names, until it is repaired.
func checkConditions(t *testing.T, c *cluster) {
	node := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Node",
		"metadata": map[string]any{"name": "n9"}, "spec": map[string]any{"podCIDR": "10.2.30.0/24", "podCIDRs": []any{"10.2.30.0/24"}}}}
	if _, err := c.admin.Resource(nodes).Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.admin.Resource(nodes).Delete(context.Background(), "n9", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	c.create(poolOf("cond-wrong", "10.3.0.1", "10.3.0.9"))
	c.create(poolOf("cond-a", "10.2.20.1", "10.2.20.9"))
	c.create(poolOf("cond-b", "10.2.20.9", "10.2.20.20"))
	c.create(poolOf("cond-pods", "10.2.30.7", "10.2.30.9"))
	c.until("cond-wrong", "0/0 []; Invalid Invalid: IPPool cond-wrong: spec.ipRanges[0]: 10.3.0.1-10.3.0.9 is not inside")
	c.until("cond-a", "0/9 [10.2.20.1-10.2.20.9]; Overlapping Overlap: pool cond-a has address 10.2.20.9, and so has IPPool cond-b")
	c.until("cond-b", "0/12 [10.2.20.9-10.2.20.20]; Overlapping Overlap: pool cond-b has address 10.2.20.9, and so has IPPool cond-a")
	c.until("cond-pods", "0/3 [10.2.30.7-10.2.30.9]; Overlapping Overlap: pool cond-pods has address 10.2.30.7, and so has the podCIDR 10.2.30.0/24 of node n9")
	repaired := []byte(`{"spec": {"excludes": ["10.2.20.9"]}}`)
	if _, err := c.pools().Patch(t.Context(), "cond-b", types.MergePatchType, repaired, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := said(c.until("cond-b", "0/11 [10.2.20.10-10.2.20.20]").Status); strings.Contains(got, "Overlap") {
		t.Errorf("corrected: %s", got)
	}
	c.until("cond-a", "0/9 [10.2.20.1-10.2.20.9]")
	for _, name := range []string{"cond-wrong", "cond-a", "cond-b", "cond-pods"} {
		if err := c.pools().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		c.untilGone(name)
	}
}

func (c *cluster) untilGone(name string) {
	c.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		p, err := c.get(name)
		if apierrors.IsNotFound(err) {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("deleted pool %s is still there: %+v, %v", name, p, err)
		}
	}
}

// A deleted pool remains until no address of it is in use.
func checkDeleted(t *testing.T, c *cluster) {
	p := poolOf("deleted", "10.2.40.1", "10.2.40.1")
	c.create(p)
	c.until("deleted", "0/1 [10.2.40.1]")
	a := c.allocator(time.Second)
	c.allocate(a, "a", p)
	if err := c.pools().Delete(t.Context(), "deleted", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.until("deleted", "1/1 []; Exhausted AllInUse: 1 of 1 addresses are in use. Extend spec.ipRanges, or delete pods that "+
		"use the pool; Filling AboveThreshold: 1 of 1 addresses are in use, 80 percent or more. Extend spec.ipRanges; "+
		"Ready Deleted: the pool is being deleted; 1 of its addresses are still in use")
	c.release(a, "a")
	c.untilGone("deleted")
}

// A pool is written at most once a second, and never without changes, even with two controllers.
func checkSeldom(t *testing.T, c *cluster) {
	p := poolOf("busy", "10.2.50.1", "10.2.50.99")
	c.create(p)
	c.until("busy", "0/99")
	watch, err := c.pools().Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=busy"})
	if err != nil {
		t.Fatal(err)
	}
	events := make(chan int)
	go func() {
		n := 0
		for range watch.ResultChan() {
			n++
		}
		events <- n
	}()
	a := c.allocator(0)
	began, pods := time.Now(), 0
	for ; time.Since(began) < 4*time.Second; pods++ {
		c.allocate(a, fmt.Sprint(pods), p)
		if pods > 5 {
			c.release(a, fmt.Sprint(pods-5))
		}
	}
	took := time.Since(began)
	watch.Stop()
	if n, most := <-events, int(took/short().Pass)+3; n > most || n < 3 {
		t.Errorf("%d pods came and went in %s, and the pool was written %d times, want 3 to %d", pods, took, n, most)
	}
	for pod := range pods {
		c.release(a, fmt.Sprint(pod))
	}
	c.until("busy", "0/99 [10.2.50.1-10.2.50.99]")
	c.start(api.NodeIPAM{}) // a second one
	// Its first pass may write, which cannot be observed: two controllers that undo each other's writes would never
	// leave the pool unchanged for so long.
	last := c.until("busy", "0/99")
	c.waits(func() string {
		before := last
		time.Sleep(10 * short().PassAtLeast)
		if last = c.until("busy", "0/99"); last.ResourceVersion != before.ResourceVersion {
			return fmt.Sprintf("two idle controllers write: %+v, then %+v", before.Status, last.Status)
		}
		return ""
	})
}

func poolOf(name, start, end string) *api.IPPool {
	subnet := api.SubnetInfo{Gateway: "10.2.255.254", PrefixLength: 16}
	if strings.Contains(start, ":") {
		subnet = api.SubnetInfo{Gateway: "fe80::1", PrefixLength: 64}
	}
	return &api.IPPool{ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 7},
		Spec: api.IPPoolSpec{IPRanges: []api.IPRange{{Start: start, End: end}}, SubnetInfo: &subnet}}
}

// said is a status in one line: usage, free map, then the conditions that differ from those of a healthy pool.
func said(s api.IPPoolStatus) string {
	out := fmt.Sprintf("%d/%d %v", s.Usage.Used, s.Usage.Total, s.FreeMap)
	for _, c := range s.Conditions {
		if (c.Status == metav1.ConditionTrue) != (c.Type == api.PoolReady) {
			out += fmt.Sprintf("; %s %s: %s", c.Type, c.Reason, c.Message)
		}
	}
	return out
}
