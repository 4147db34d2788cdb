package controller

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/ipam/reclaim"
)

// wire is a connection to the API server whose behaviour is decided per request.
type wire struct {
	next http.RoundTripper

	mu sync.Mutex
	// cut are resources that are cut off: lists fail, and watches deliver no events.
	cut map[string]bool
	// before, if set, is called before each request other than a watch. Its error is the response.
	before func(*http.Request) error
	// after, if set, is called after the API server has executed the request. Its error is the response.
	after func(*http.Request) error
	// moved is closed when cut changes.
	moved chan struct{}
}

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	watch := r.URL.Query().Get("watch") != ""
	if err := w.wait(r.Context(), r.URL.Path); err != nil {
		return nil, err
	}
	w.mu.Lock()
	before, after := w.before, w.after
	w.mu.Unlock()
	if before != nil && !watch {
		if err := before(r); err != nil {
			return nil, err
		}
	}
	resp, err := w.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if watch {
		resp.Body = &cutBody{resp.Body, func() error { return w.wait(r.Context(), r.URL.Path) }}
		return resp, nil
	}
	if after != nil && r.Method != http.MethodGet {
		if err := after(r); err != nil {
			resp.Body.Close()
			return nil, err
		}
	}
	return resp, nil
}

// wait returns when nothing in path is cut.
func (w *wire) wait(ctx context.Context, path string) error {
	for {
		w.mu.Lock()
		resource, moved := path[strings.LastIndexByte(path, '/')+1:], w.moved
		is := w.cut[resource]
		w.mu.Unlock()
		if !is {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// set cuts these resources, and restores all others.
func (w *wire) set(cut ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = map[string]bool{}
	for _, r := range cut {
		w.cut[r] = true
	}
	close(w.moved)
	w.moved = make(chan struct{})
}

// interfere sets hooks for requests.
func (w *wire) interfere(before, after func(*http.Request) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.before, w.after = before, after
}

// cutBody is the body of a watch.
type cutBody struct {
	io.ReadCloser
	wait func() error
}

func (b *cutBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if werr := b.wait(); werr != nil {
		return 0, werr
	}
	return n, err
}

// grace is the grace period of the tests. Their clock is simulated, so it takes no time.
const grace = time.Minute

// stepper is a reclaimer, with the shipped RBAC rules, that makes a pass only when it is called.
type stepper struct {
	*reclaimer
	c      *cluster
	wire   *wire
	events *record.FakeRecorder
	now    time.Duration
	sweep  *poolStatus
	count  int // of Events
	// killAt: the process is killed after that many more requests; 0 for never.
	killAt int
}

// stepper creates one, which ends with the test.
func (c *cluster) stepper() *stepper {
	c.t.Helper()
	s := &stepper{c: c, wire: &wire{moved: make(chan struct{})}, events: record.NewFakeRecorder(1000)}
	cfg := c.config(c.token)
	cfg.WrapTransport = func(next http.RoundTripper) http.RoundTripper { s.wire.next = next; return s.wire }
	typed, err := kubernetes.NewForConfig(cfg)
	must(c.t, err)
	client, err := dynamic.NewForConfig(cfg)
	must(c.t, err)
	o := c.options(client)
	o.Kubernetes, o.Config.Reclaim = typed, api.Reclaim{Enabled: true, GracePeriod: grace}
	w := newWorld(o)
	s.reclaimer = newReclaimer(o, w, s.events, newMetrics("test"))
	s.sweep = &poolStatus{allocations: client.Resource(api.AllocationResource), world: w, log: logr.Discard()}
	s.clock = func() time.Duration { return s.now }
	s.begin()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { w.follow(ctx) })
	c.t.Cleanup(func() { cancel(); running.Wait() })
	return s
}

// hear waits until the cache matches the API server for the resources.
func (s *stepper) hear(resources ...string) {
	s.c.t.Helper()
	if len(resources) == 0 {
		resources = []string{"nodes", "ipallocations"}
	}
	for _, r := range resources {
		for start := time.Now(); ; time.Sleep(time.Millisecond) {
			missing := s.unheard(r)
			if missing == "" {
				break
			}
			if time.Since(start) > patience {
				s.c.t.Fatal(missing)
			}
		}
	}
}

// unheard returns what of a resource the cache is missing.
func (s *stepper) unheard(resource string) string {
	s.c.t.Helper()
	want, got := map[string]string{}, map[string]string{}
	if resource == "nodes" {
		list, err := s.c.s.Admin().CoreV1().Nodes().List(s.c.t.Context(), metav1.ListOptions{})
		must(s.c.t, err)
		for _, n := range list.Items {
			want[n.Name] = string(n.UID) + n.ResourceVersion
		}
		for _, n := range listOf[corev1.Node](s.world.nodes) {
			got[n.Name] = string(n.UID) + n.ResourceVersion
		}
	} else {
		for _, a := range s.c.all() {
			want[a.Name] = string(a.UID) + a.ResourceVersion
		}
		for _, a := range listOf[api.IPAllocation](s.world.allocations) {
			got[a.Name] = string(a.UID) + a.ResourceVersion
		}
	}
	if !s.world.synced() || !maps.Equal(want, got) {
		return fmt.Sprintf("the cache of %s has %v, the API server %v", resource, got, want)
	}
	return ""
}

// look waits for the cache, and makes one pass, later after the previous one.
func (s *stepper) look(later time.Duration) {
	s.c.t.Helper()
	s.hear()
	s.now += later
	s.pass(s.c.t.Context())
}

// all are all allocations, read with administrator rights.
func (c *cluster) all() []api.IPAllocation {
	c.t.Helper()
	list, err := allocation.NewKubernetes(c.admin).List(c.t.Context(), allocation.Filter{})
	must(c.t, err)
	return list
}

// holders are the allocated addresses and their containers, as "ADDRESS CONTAINER, ...".
func (c *cluster) holders() string {
	c.t.Helper()
	var out []string
	for _, a := range c.all() {
		if a.Spec.Phase == api.PhaseAllocated {
			out = append(out, a.Spec.Address+" "+a.Spec.Owner.ContainerID)
		}
	}
	return strings.Join(out, ", ")
}

// hold creates an allocation. The container has the pod's name, and the owner pod's UID if there is one.
func (c *cluster) hold(ip, node, container string, pod *corev1.Pod) api.IPAllocation {
	c.t.Helper()
	o := api.AllocationOwner{ContainerID: container, IfName: "eth0", Network: "net", Node: node}
	if pod != nil {
		o.Namespace, o.Name, o.PodUID = pod.Namespace, pod.Name, string(pod.UID)
	}
	a, err := allocation.NewKubernetes(c.admin).Create(c.t.Context(), api.IPAllocation{
		ObjectMeta: metav1.ObjectMeta{Name: allocation.Name("", netip.MustParseAddr(ip))},
		Spec:       api.IPAllocationSpec{Address: ip, Pool: "p", Phase: api.PhaseAllocated, Owner: o}})
	must(c.t, err)
	return a
}

// podOn creates a Pod on a node.
func (c *cluster) podOn(name, node string) *corev1.Pod {
	c.t.Helper()
	p, err := c.s.Admin().CoreV1().Pods("default").Create(c.t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main", Image: "none"}}}}, metav1.CreateOptions{})
	must(c.t, err)
	return p
}

func (c *cluster) deletePod(name string) {
	c.t.Helper()
	now := int64(0)
	err := c.s.Admin().CoreV1().Pods("default").Delete(c.t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	if err != nil && !apierrors.IsNotFound(err) {
		c.t.Fatal(err)
	}
}

// ready writes the condition Ready of a Node.
func (c *cluster) ready(name string, is corev1.ConditionStatus) {
	c.t.Helper()
	n, err := c.s.Admin().CoreV1().Nodes().Get(c.t.Context(), name, metav1.GetOptions{})
	must(c.t, err)
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: is}}
	_, err = c.s.Admin().CoreV1().Nodes().UpdateStatus(c.t.Context(), n, metav1.UpdateOptions{})
	must(c.t, err)
}

// fence adds or removes the out-of-service taint.
func (c *cluster) fence(name string, is bool) {
	c.t.Helper()
	n, err := c.s.Admin().CoreV1().Nodes().Get(c.t.Context(), name, metav1.GetOptions{})
	must(c.t, err)
	n.Spec.Taints = nil
	if is {
		n.Spec.Taints = []corev1.Taint{{Key: reclaim.TaintOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute}}
	}
	_, err = c.s.Admin().CoreV1().Nodes().Update(c.t.Context(), n, metav1.UpdateOptions{})
	must(c.t, err)
}

// empty removes all allocations, Pods and Nodes.
func (c *cluster) empty(t testing.TB) {
	t.Helper()
	ctx, now := context.Background(), int64(0)
	store := allocation.NewKubernetes(c.admin)
	list, err := store.List(ctx, allocation.Filter{})
	must(t, err)
	for _, a := range list {
		must(t, store.Delete(ctx, a))
	}
	admin := c.s.Admin().CoreV1()
	must(t, admin.Pods("default").DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{}))
	must(t, admin.Nodes().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
}
