package controller

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/nodecidr"
)

// steps is a NodeIPAM, with the shipped RBAC rules, that follows the API server and makes no pass by itself. It counts
// what it asks about Nodes and Pods.
type steps struct {
	*nodeIPAM
	events *record.FakeRecorder
	asked  atomic.Int64
}

func (c *cluster) steps(cfg api.NodeIPAM, grace time.Duration) *steps {
	c.t.Helper()
	must(c.t, c.admin.Resource(api.ClaimResource).DeleteCollection(c.t.Context(), metav1.DeleteOptions{},
		metav1.ListOptions{})) // other tests'
	s := &steps{events: record.NewFakeRecorder(1000)}
	connection, count := c.config(c.token), &wire{moved: make(chan struct{})}
	connection.WrapTransport = func(next http.RoundTripper) http.RoundTripper { count.next = next; return count }
	count.interfere(func(r *http.Request) error {
		if strings.Contains(r.URL.Path, "/nodes/") || strings.HasSuffix(r.URL.Path, "/pods") {
			s.asked.Add(1)
		}
		return nil
	}, nil)
	typed, err := kubernetes.NewForConfig(connection)
	must(c.t, err)
	o := c.options(c.client(c.token))
	o.Kubernetes, o.Config.NodeIPAM, o.Config.Reclaim.GracePeriod = typed, cfg, grace
	w := newWorld(o)
	s.nodeIPAM = newNodeIPAM(o, w, s.events, newMetrics("test"))
	s.begin()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { w.follow(ctx) })
	running.Go(func() { s.follow(ctx) })
	c.t.Cleanup(func() { cancel(); running.Wait() })
	return s
}

// Claims of Nodes that are gone are asked about in turn, so many Nodes in a pass, and none again before a third of the
// grace period: of Pods and Node once, however many podCIDRs it had.
func TestKubeStaleClaimsInTurn(t *testing.T) {
	const gone = staleInPass + 5
	c := newCluster(t)
	s := c.steps(ipam("10.83.0.0/16", "fd00:83::/48"), time.Hour)
	for i := range gone {
		g := nodecidr.Assignment{Node: fmt.Sprint("gone", i), UID: fmt.Sprint("uid", i)}
		must(t, s.claim(t.Context(), netip.MustParsePrefix(fmt.Sprintf("10.83.%d.0/24", i)), g))
		must(t, s.claim(t.Context(), netip.MustParsePrefix(fmt.Sprintf("fd00:83:0:%x::/64", i)), g))
	}
	c.waits(func() string {
		if !s.synced() || len(s.claims.List()) != 2*gone {
			return "the cache lacks claims"
		}
		return ""
	})
	for pass, want := range []int64{2 * staleInPass, 2 * 5, 0} {
		before := s.asked.Load()
		s.pass(t.Context())
		if got := s.asked.Load() - before; got != want {
			t.Errorf("pass %d: %d requests, want %d", pass, got, want)
		}
	}
	s.vacancies.Grace = 300 * time.Millisecond
	c.waits(func() string {
		before := s.asked.Load()
		s.pass(t.Context())
		if got := s.asked.Load() - before; got > 2*staleInPass {
			t.Errorf("%d requests in a pass", got)
		}
		if n := len(c.claims()); n > 0 {
			return fmt.Sprint(n, " claims are left")
		}
		return ""
	})
}

// running writes what the kubelet of a machine reports of a Pod that has run there for an hour.
func (c *cluster) running(pod, podIP, machine string) {
	c.t.Helper()
	pods := c.s.Admin().CoreV1().Pods("default")
	p, err := pods.Get(c.t.Context(), pod, metav1.GetOptions{})
	must(c.t, err)
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: podIP, PodIPs: []corev1.PodIP{{IP: podIP}},
		HostIP: machine, HostIPs: []corev1.HostIP{{IP: machine}},
		ContainerStatuses: []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{
			Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(time.Now().Add(-time.Hour))}}}}}
	_, err = pods.UpdateStatus(c.t.Context(), p, metav1.UpdateOptions{})
	must(c.t, err)
}

// at writes the address of a Node's machine.
func (c *cluster) at(node *corev1.Node, address string) {
	c.t.Helper()
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
	_, err := c.s.Admin().CoreV1().Nodes().UpdateStatus(c.t.Context(), node, metav1.UpdateOptions{})
	must(c.t, err)
}

// A Node that is deleted and registers again gets its podCIDR back where none is left, while its pods run on, but not
// on another machine of that name.
func TestKubePodCIDROfANodeThatIsBack(t *testing.T) {
	c := newCluster(t)
	ctx, cancel := context.WithCancel(t.Context())
	cfg := api.ControllerConfig{NodeIPAM: ipam("10.84.0.0/23"), Reclaim: api.Reclaim{GracePeriod: 2 * time.Second}}
	_, done := c.startWith(ctx, cfg, nil)
	t.Cleanup(func() { cancel(); must(t, <-done) })
	c.node("a")
	c.node("b")
	c.waits(c.noneTwice)
	block := netip.MustParsePrefix(c.podCIDRs("a"))
	c.podOn("stays", "a")
	t.Cleanup(func() {
		now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
		must(t, c.s.Admin().CoreV1().Pods("default").Delete(context.Background(), "stays", now))
	})
	c.running("stays", block.Addr().Next().String(), "192.0.2.1")
	waiting := c.node("waiting")
	c.event(waiting, api.EventCIDRNotAvailable, "are in use")
	c.deleteNode(ctx, "a")
	again := c.node("a")
	c.at(again, "192.0.2.9") // another machine has registered
	c.event(again, api.EventCIDRNotAvailable, "An earlier Node of this name had "+block.String())
	for start := time.Now(); time.Since(start) < 2*cfg.Reclaim.GracePeriod; time.Sleep(50 * time.Millisecond) {
		if got := c.podCIDRs("waiting") + c.podCIDRs("a"); got != "" {
			t.Fatalf("a Node gets %s, though a Pod on another machine has an address of it", got)
		}
	}
	again, err := c.s.Admin().CoreV1().Nodes().Get(ctx, "a", metav1.GetOptions{})
	must(t, err)
	c.at(again, "192.0.2.1")
	c.has("a", block.String())
	c.has("waiting", "")
}
