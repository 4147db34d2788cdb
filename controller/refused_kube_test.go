package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
)

// refusing fails each kind of write, by method and path, once with every error before it lets it through; each kind
// starts with another error.
type refusing struct {
	next http.RoundTripper

	mu    sync.Mutex
	tries map[string]int // by method and path
	first map[string]int // index of the first error of each
	done  map[int]int    // by error
}

// refusals are the API server's possible errors: 0 is a connection that breaks after the write.
func refusals() []int {
	return []int{http.StatusConflict, 0, http.StatusTooManyRequests, http.StatusInternalServerError}
}

// refusal is the next error of a write, -1 if there is none.
func (f *refusing) refusal(r *http.Request) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	key, all := r.Method+" "+r.URL.Path, refusals()
	n, known := f.tries[key]
	if !known {
		f.first[key] = len(f.first)
	}
	if f.tries[key]++; n >= len(all) {
		return -1
	}
	at := all[(n+f.first[key])%len(all)]
	f.done[at]++
	return at
}

func (f *refusing) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet {
		return f.next.RoundTrip(r)
	}
	at := f.refusal(r)
	switch at {
	case -1:
		return f.next.RoundTrip(r)
	case 0:
		resp, err := f.next.RoundTrip(r)
		if err != nil {
			return nil, err
		}
		resp.Body.Close()
		return nil, errors.New("connection reset by peer")
	}
	if r.Body != nil {
		r.Body.Close()
	}
	reason := map[int]metav1.StatusReason{409: metav1.StatusReasonConflict, 429: metav1.StatusReasonTooManyRequests,
		500: metav1.StatusReasonInternalError}[at]
	body := fmt.Sprintf(`{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": %q, "code": %d}`, reason, at)
	return &http.Response{StatusCode: at, Header: http.Header{"Content-Type": {"application/json"}}, Request: r,
		Body: io.NopCloser(strings.NewReader(body))}, nil
}

// Each write of the controller fails in every way before it succeeds: the final state is the same as without errors.
func TestKubeEachWriteFails(t *testing.T) {
	c := newCluster(t)
	c.empty(t)
	t.Cleanup(func() { c.empty(t) })
	f := &refusing{tries: map[string]int{}, first: map[string]int{}, done: map[int]int{}}
	cfg := c.config(c.token)
	cfg.WrapTransport = func(next http.RoundTripper) http.RoundTripper { f.next = next; return f }
	client, err := dynamic.NewForConfig(cfg)
	must(t, err)
	typed, err := kubernetes.NewForConfig(cfg)
	must(t, err)
	o := c.options(client)
	o.Kubernetes, o.Config = typed, api.ControllerConfig{NodeIPAM: ipam("10.81.0.0/16", "fd00:81::/56"), APIAddress: netip.MustParseAddr("127.0.0.1")}
	o.Config.Reclaim = api.Reclaim{Enabled: true, GracePeriod: 100 * time.Millisecond}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, o) }()
	defer func() { cancel(); must(t, <-ended) }()

	c.create(poolOf("refused", "10.2.100.1", "10.2.100.40"))
	c.create(poolOf("dying-refused", "10.2.101.1", "10.2.101.9"))
	c.until("dying-refused", "0/9")
	var uids []types.UID
	for i := range 4 {
		uids = append(uids, c.set(fmt.Sprint("refused-", i), 2, 0, inPools("refused")).UID)
		c.node(fmt.Sprint("refused-", i))
		c.node(fmt.Sprint("gone-", i))
		c.hold(fmt.Sprint("10.2.100.10", i), fmt.Sprint("gone-", i), "x", nil)
	}
	c.reservedAndAssigned(uids, 2, 8)

	must(t, c.pools().Delete(t.Context(), "dying-refused", metav1.DeleteOptions{}))
	for i := range 4 {
		c.deleteNode(t.Context(), fmt.Sprint("gone-", i))
		c.scale(fmt.Sprint("refused-", i), 1)
	}
	c.reservedAndAssigned(uids, 1, 4)
	c.untilGone("dying-refused")
	c.waits(func() string {
		if held := c.holders(); held != "" {
			return "not reclaimed: " + held
		}
		return ""
	})
	c.until("refused", "8/40") // 4 reserved, 4 cooling
	t.Logf("%d kinds of writes; %v", len(f.first), f.done)
}

// reservedAndAssigned waits until each set has replicas addresses, and each of nodes Nodes its podCIDRs.
func (c *cluster) reservedAndAssigned(uids []types.UID, replicas, nodes int) {
	c.t.Helper()
	for _, uid := range uids {
		c.waits(func() string {
			list, err := c.store().List(c.t.Context(), allocation.Filter{UID: string(uid)})
			must(c.t, err)
			if len(list) != replicas {
				return fmt.Sprintf("%d addresses, not %d: %s", len(list), replicas, c.kept(uid))
			}
			return ""
		})
	}
	c.waits(c.noneTwice)
	c.waits(func() string {
		if got := len(c.claims()); got != 2*nodes {
			return fmt.Sprintf("%d claims for %d nodes", got, nodes)
		}
		return ""
	})
}
