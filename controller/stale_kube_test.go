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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/nodecidr"
)

// steps is a NodeIPAM, with the shipped RBAC rules, that watches the API server but makes no pass by itself. It counts
// its requests for Nodes and Pods.
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

// Claims of deleted Nodes are checked in turn, a limited number of Nodes per pass, and each again only after a third of
// the grace period: with one read each of Pods and Node, however many podCIDRs it had.
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
