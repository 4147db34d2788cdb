package allocator

import (
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/ipam/pool"
	"github.com/fairlead-cni/fairlead/test/apitest"
)

// badWire is a connection to the API server that loses the response to the next Create. With dies it fails all requests
// from then on, until it is repaired.
type badWire struct {
	next             http.RoundTripper
	loses, dies, now atomic.Bool
}

var errWire = errors.New("the wire is bad")

func (w *badWire) RoundTrip(r *http.Request) (*http.Response, error) {
	if w.now.Load() {
		return nil, errWire
	}
	resp, err := w.next.RoundTrip(r)
	if err == nil && r.Method == http.MethodPost && w.loses.CompareAndSwap(true, false) {
		resp.Body.Close()
		w.now.Store(w.dies.Load())
		return nil, errWire
	}
	return resp, err
}

// A response of the API server may be lost after the request was executed. The address is released at once, or returned
// by the next ADD, or released by the DEL.
func TestKubeAnswerLost(t *testing.T) {
	url, ca, _ := strings.Cut(apiServer(t), " ")
	wire := &badWire{}
	client, err := dynamic.NewForConfig(&rest.Config{Host: url, BearerToken: apitest.AdminToken,
		TLSClientConfig: rest.TLSClientConfig{CAFile: ca},
		WrapTransport:   func(rt http.RoundTripper) http.RoundTripper { wire.next = rt; return wire }})
	if err != nil {
		t.Fatal(err)
	}
	a := newAllocator(allocation.NewKubernetes(client))
	a.Cooling = 0
	p := makePool(t, "lost", "10.2.77.1", "10.2.77.99", 0)
	lose := func(dies bool) {
		t.Helper()
		wire.loses.Store(true)
		wire.dies.Store(dies)
		got, err := a.Allocate(t.Context(), Request{Pools: []pool.Pool{p}, Owner: ownerNamed("a")})
		if !errors.Is(err, errWire) {
			t.Fatalf("on a bad wire: %v, %v", got, err)
		}
		wire.now.Store(false)
	}
	held := func() string {
		t.Helper()
		list, err := a.Store.List(t.Context(), allocation.Filter{Pool: "lost"})
		if err != nil || len(list) > 1 {
			t.Fatalf("%+v is held: %v", list, err)
		}
		for _, h := range list {
			return h.Spec.Address + "/16"
		}
		return ""
	}
	if lose(false); held() != "" {
		t.Errorf("%s was left by an Allocate that failed", held())
	}
	if lose(true); held() == "" {
		t.Fatal("nothing was left: the test shows nothing")
	}
	if left := held(); allocate(t, a, "a", p) != left || held() != left {
		t.Errorf("%s was left, and now %s is held", left, held())
	}
	release(t, a, "a")
	lose(true)
	if release(t, a, "a"); held() != "" {
		t.Errorf("%s is held after the DEL", held())
	}
}
