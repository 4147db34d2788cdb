package allocator

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/ipam/pool"
	"github.com/fairlead-cni/fairlead/test/apitest"
)

// shared is the API server of this package's tests: see TestMain.
var shared apitest.Shared

func TestMain(m *testing.M) {
	if where := os.Getenv(childStore); where != "" {
		allocateForEver(where, os.Getenv(childNode))
	}
	code := m.Run()
	if err := shared.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// apiServer starts an API server that serves IPAllocations, and returns how openStore finds it.
func apiServer(t *testing.T) string {
	t.Helper()
	s := shared.Get(t)
	err := s.Apply(t.Context(), "../../build/manifests/fairlead.yaml", "app.kubernetes.io/component=crds")
	if err != nil {
		t.Fatal(err)
	}
	return s.URL + " " + s.CA()
}

// openStore opens a store by its location: a directory, or "URL CA" of an API server, with a connection of its own.
func openStore(where string) (allocation.Store, error) {
	url, ca, isKube := strings.Cut(where, " ")
	if !isKube {
		return allocation.NewDirectory(where)
	}
	client, err := dynamic.NewForConfig(&rest.Config{Host: url, BearerToken: apitest.AdminToken, QPS: 1000, Burst: 1000,
		TLSClientConfig: rest.TLSClientConfig{CAFile: ca}})
	if err != nil {
		return nil, err
	}
	return allocation.NewKubernetes(client), nil
}

func mustOpen(t *testing.T, where string) allocation.Store {
	t.Helper()
	s, err := openStore(where)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestDrainDirectory(t *testing.T) { drain(t, t.TempDir(), true, false) }
func TestKubeDrain(t *testing.T)      { drain(t, apiServer(t), false) }

// drain lets ten nodes allocate all of a pool concurrently, once for each of coolings, which says whether the addresses
// then cool: no address is allocated twice, no request fails while an address is free, and nothing is left.
func drain(t *testing.T, where string, coolings ...bool) {
	pools := []pool.Pool{makePool(t, "v4", "10.2.0.1", "10.2.0.200", 0), makePool(t, "v6", "fd00::1", "fd00::ffff", 0)}
	var nodes []*Allocator
	for i := range 10 {
		a := newAllocator(mustOpen(t, where))
		a.Node, a.Log = fmt.Sprint("node", i), logr.Discard()
		nodes = append(nodes, a)
	}
	for round, cooling := range coolings {
		for node, names := range drainOnce(t, nodes, pools) {
			if !cooling {
				node.Cooling = 0
			}
			for _, name := range names {
				release(t, node, name)
			}
		}
		left, err := nodes[0].Store.List(t.Context(), allocation.Filter{})
		cools := func(a api.IPAllocation) bool { return a.Spec.Phase == api.PhaseCooling && cooling }
		if err != nil || slices.ContainsFunc(left, func(a api.IPAllocation) bool { return !cools(a) && a.Spec.Pool == "v4" }) {
			t.Errorf("round %d: %v, and these are left: %+v", round, err, left)
		}
	}
}

// drainOnce returns the pods of each node.
func drainOnce(t *testing.T, nodes []*Allocator, pools []pool.Pool) map[*Allocator][]string {
	t.Helper()
	var mu sync.Mutex
	var all sync.WaitGroup
	holder, owners, each := map[string]string{}, map[*Allocator][]string{}, make([]int, len(nodes))
	for i, node := range nodes {
		all.Go(func() {
			for n := 0; ; n++ {
				name := fmt.Sprintf("%s-%d", node.Node, n)
				got, err := node.Allocate(t.Context(), Request{Pools: pools, Owner: ownerNamed(name)})
				if err != nil {
					var full *ExhaustedError
					if !errors.As(err, &full) || full.Pools[0].Pool != "v4" || full.Pools[0].Used != 200 {
						t.Errorf("%s: %v", name, err)
					}
					return
				}
				mu.Lock()
				for _, g := range got {
					if other := holder[g.Prefix.String()]; other != "" {
						t.Errorf("%s was given to %s and to %s", g.Prefix, other, name)
					}
					holder[g.Prefix.String()] = name
				}
				owners[node], each[i] = append(owners[node], name), each[i]+1
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if len(holder) != 400 {
		t.Errorf("%d addresses were given, want 200 of each family", len(holder))
	}
	t.Logf("addresses of each node: %v", each)
	return owners
}
