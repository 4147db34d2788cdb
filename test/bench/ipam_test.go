package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/controller"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/ipam/allocator"
	"github.com/fairlead-cni/fairlead/ipam/pool"
	"github.com/fairlead-cni/fairlead/test/apitest"
)

// The pools that are compared: ours has 65,021 addresses. The other one keeps all allocations in one object, as Antrea
// and whereabouts do.
const (
	benchPool = "bench"
	onePool   = "one-object"
)

// each is the number of allocations per measurement.
const each = 500

// ipamBench is a cluster with an API server, fairlead-controller and a number of nodes.
type ipamBench struct {
	b      *testing.B
	client dynamic.Interface
	pool   atomic.Pointer[pool.Pool] // as on the nodes, with the controller's free map
	n      atomic.Int64              // for owners' names
	nodes  []*allocator.Allocator

	kubernetes     kubernetes.Interface
	stopController func() // and waits for its end
}

// BenchmarkIPAM allocates addresses of a pool with 1, 10 and 50 concurrent nodes, beside plain creates of objects of
// the same size, and beside a pool that is one object: with an empty pool, with 5,000 addresses in use, and until it is
// full; with a full pool, after a start of the controller; and again until it is full after all addresses were released
// in random order. It fails if an address is allocated twice, or an allocation fails while an address is free.
func BenchmarkIPAM(b *testing.B) {
	var shared apitest.Shared
	defer func() {
		if err := shared.Stop(); err != nil {
			b.Error(err)
		}
	}()
	x := newIPAMBench(b, shared.Get(b))
	for b.Loop() {
		x.compare("empty")
		held := x.take(50, 5000)
		x.fillOne(5000)
		x.compare("5,000 used")
		held = append(held, x.drain("to the end")...)
		x.sizes()
		held[0] = x.restart(held[0])
		x.empty(held)
		x.drain("again")
	}
}

// say prints immediately: the benchmark takes minutes.
func say(format string, args ...any) { fmt.Printf(format+"\n", args...) }

func (x *ipamBench) create(name, third string) {
	x.b.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": api.PoolGroup + "/" + api.PoolVersion,
		"kind": api.PoolKind, "metadata": map[string]any{"name": name}, "spec": map[string]any{
			"ipRanges":   []any{map[string]any{"start": "10." + third + ".0.10", "end": "10." + third + ".253.255"}},
			"subnetInfo": map[string]any{"gateway": "10." + third + ".0.1", "prefixLength": int64(16)}}}}
	if _, err := x.client.Resource(api.PoolResource).Create(x.b.Context(), u, metav1.CreateOptions{}); err != nil {
		x.b.Fatal(err)
	}
}

func newIPAMBench(b *testing.B, s *apitest.Server) *ipamBench {
	if err := s.Apply(b.Context(), "../../build/manifests/fairlead.yaml", "app.kubernetes.io/component=crds"); err != nil {
		b.Fatal(err)
	}
	x := &ipamBench{b: b}
	config := &rest.Config{Host: s.URL, BearerToken: apitest.AdminToken, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAFile: s.CA()}}
	var err error
	if x.client, err = dynamic.NewForConfig(config); err != nil {
		b.Fatal(err)
	}
	x.create(benchPool, "128")
	x.create(onePool, "129")
	for i := range 50 {
		x.nodes = append(x.nodes, allocator.New(allocator.Config{Store: allocation.NewKubernetes(x.client),
			Node: fmt.Sprint("node", i), FreeMap: x.freeMap, Log: logr.Discard()}))
	}
	x.kubernetes = s.Admin()
	x.startController()
	ctx, stop := context.WithCancel(b.Context())
	var running sync.WaitGroup
	running.Go(func() { x.followPool(ctx) })
	b.Cleanup(func() { stop(); running.Wait(); x.stopController() })
	for x.pool.Load() == nil {
		time.Sleep(10 * time.Millisecond)
		if b.Context().Err() != nil {
			b.Fatal("the pool was never read")
		}
	}
	return x
}

func (x *ipamBench) startController() {
	cfg := api.ControllerConfig{APIAddress: netip.MustParseAddr("127.0.0.1"), PoolWarningPercent: 80}
	ctx, stop := context.WithCancel(x.b.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := controller.Run(ctx, controller.Options{Config: cfg, Client: x.client, Kubernetes: x.kubernetes,
			Intervals: api.DefaultIntervals().Controller, Log: logr.Discard()}); err != nil {
			x.b.Error(err)
		}
	})
	x.stopController = func() { stop(); running.Wait() }
}

// freeMap is the controller's free map, as on the nodes.
func (x *ipamBench) freeMap(string) (pool.FreeMap, bool) { return x.pool.Load().Free, true }

// followPool watches the pool, as agents do.
func (x *ipamBench) followPool(ctx context.Context) {
	for ctx.Err() == nil {
		w, err := x.client.Resource(api.PoolResource).Watch(ctx, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, benchPool).String()})
		if err == nil {
			err = x.read(w)
		}
		if err != nil && ctx.Err() == nil {
			x.b.Error(err)
			return
		}
	}
}

// read stores the pool on each event until the API server ends the watch.
func (x *ipamBench) read(w watch.Interface) error {
	defer w.Stop()
	for e := range w.ResultChan() {
		u, ok := e.Object.(*unstructured.Unstructured)
		if !ok {
			return fmt.Errorf("watching the pool: %+v", e.Object)
		}
		p, err := pool.FromObject(u)
		if err != nil {
			return err
		}
		x.pool.Store(&p)
	}
	return nil
}

// compare prints addresses per second of the interleaved methods, the median of three rounds; the pool of one object is
// measured once.
func (x *ipamBench) compare(when string) {
	for _, nodes := range []int{1, 10, 50} {
		var ours, plain []float64
		for range 3 {
			plain = append(plain, each/x.plain(nodes, each).Seconds())
			ours = append(ours, each/x.takeAndFree(nodes, each).Seconds())
		}
		few := max(10, nodes) // otherwise it would take too long
		one := float64(few) / x.takeOfOne(nodes, few).Seconds()
		for _, list := range [][]float64{ours, plain} {
			slices.Sort(list)
		}
		say("%-12s %2d nodes: %4.0f addresses/s, %4.0f plain creates/s (%3.0f %%), a pool of one object %5.1f/s",
			when, nodes, ours[1], plain[1], 100*ours[1]/plain[1], one)
	}
}

// together distributes do(worker, i) for all i over workers, and returns the elapsed time.
func together(workers, many int, do func(worker, i int)) time.Duration {
	var all sync.WaitGroup
	start := time.Now()
	for w := range workers {
		all.Go(func() {
			for i := w; i < many; i += workers {
				do(w, i)
			}
		})
	}
	all.Wait()
	return time.Since(start)
}

// allocate allocates one address.
func (x *ipamBench) allocate(node int) (api.AllocationOwner, netip.Addr, error) {
	id := fmt.Sprint(x.n.Add(1))
	o := api.AllocationOwner{PodUID: "uid-" + id, Namespace: "bench", Name: "pod-" + id, ContainerID: id, IfName: "eth0",
		Network: "fairlead", Netns: "/run/netns/" + id, BootID: "4c6ef9a7-2a5d-4b83-9a3f-5b0d4a3b8c11"}
	got, err := x.nodes[node].Allocate(x.b.Context(), allocator.Request{Pools: []pool.Pool{*x.pool.Load()}, Owner: o})
	if err != nil {
		return o, netip.Addr{}, err
	}
	return o, got[0].Prefix.Addr(), nil
}

// take allocates addresses, and returns their holders.
func (x *ipamBench) take(nodes, many int) (held []holding) {
	var mu sync.Mutex
	took := together(nodes, many, func(node, _ int) {
		owner, _, err := x.allocate(node)
		if err != nil {
			x.b.Error(err)
		}
		mu.Lock()
		held = append(held, holding{owner, node})
		mu.Unlock()
	})
	say("%-12s %d nodes: %4.0f addresses/s", "taken", nodes, float64(many)/took.Seconds())
	return held
}

// takeAndFree allocates addresses, and releases them outside the measured time.
func (x *ipamBench) takeAndFree(nodes, many int) time.Duration {
	owners, addrs := make([]api.AllocationOwner, many), make([]netip.Addr, many)
	took := together(nodes, many, func(node, i int) {
		var err error
		if owners[i], addrs[i], err = x.allocate(node); err != nil {
			x.b.Error(err)
		}
	})
	slices.SortFunc(addrs, netip.Addr.Compare)
	if len(slices.Compact(addrs)) != many {
		x.b.Error("an address was given twice")
	}
	together(nodes, many, func(node, i int) {
		if err := x.nodes[node].Release(x.b.Context(), owners[i]); err != nil {
			x.b.Error(err)
		}
	})
	return took
}

// plain creates objects as large as allocations, under names without conflicts, and deletes them outside the measured
// time.
func (x *ipamBench) plain(workers, many int) time.Duration {
	store := allocation.NewKubernetes(x.client)
	made := make([]api.IPAllocation, many)
	took := together(workers, many, func(w, i int) {
		addr := netip.AddrFrom4([4]byte{10, 200, byte(i >> 8), byte(i)})
		id := fmt.Sprint(x.n.Add(1))
		a := api.IPAllocation{ObjectMeta: metav1.ObjectMeta{Name: allocation.Name("plain", addr)},
			Spec: api.IPAllocationSpec{Address: addr.String(), Pool: "plain", Phase: api.PhaseAllocated,
				Owner: api.AllocationOwner{PodUID: "uid-" + id, Namespace: "bench", Name: "pod-" + id, ContainerID: id,
					IfName: "eth0", Network: "fairlead", Node: fmt.Sprint("node", w), Netns: "/run/netns/" + id,
					BootID: "4c6ef9a7-2a5d-4b83-9a3f-5b0d4a3b8c11"}}}
		var err error
		if made[i], err = store.Create(x.b.Context(), a); err != nil {
			x.b.Error(err)
		}
	})
	together(workers, many, func(_, i int) {
		if err := store.Delete(x.b.Context(), made[i]); err != nil {
			x.b.Error(err)
		}
	})
	return took
}

// takeOfOne allocates addresses of the pool that is one object: read it, add the allocation, write it, and repeat on a
// conflict.
func (x *ipamBench) takeOfOne(workers, many int) time.Duration {
	pools := x.client.Resource(api.PoolResource)
	return together(workers, many, func(int, int) {
		id := fmt.Sprint(x.n.Add(1))
		for {
			u, err := pools.Get(x.b.Context(), onePool, metav1.GetOptions{})
			if err == nil {
				list, _, _ := unstructured.NestedSlice(u.Object, "status", "ipAddresses")
				err = x.writeOne(u, append(list, ofOne(len(list), id)))
			}
			if err == nil {
				return
			}
			if !apierrors.IsConflict(err) {
				x.b.Error(err)
				return
			}
		}
	})
}

// fillOne marks this many addresses of the pool of one object as in use.
func (x *ipamBench) fillOne(many int) {
	var list []any
	for i := range many {
		list = append(list, ofOne(i, fmt.Sprint(i)))
	}
	for {
		u, err := x.client.Resource(api.PoolResource).Get(x.b.Context(), onePool, metav1.GetOptions{})
		if err == nil {
			err = x.writeOne(u, list)
		}
		if err == nil {
			return
		}
		if !apierrors.IsConflict(err) { // a conflict: the controller wrote first
			x.b.Fatal(err)
		}
	}
}

func (x *ipamBench) writeOne(u *unstructured.Unstructured, list []any) error {
	if err := unstructured.SetNestedSlice(u.Object, list, "status", "ipAddresses"); err != nil {
		return err
	}
	_, err := x.client.Resource(api.PoolResource).UpdateStatus(x.b.Context(), u, metav1.UpdateOptions{})
	return err
}

// ofOne is one entry of Antrea's status.ipAddresses.
func ofOne(i int, id string) any {
	return map[string]any{"ipAddress": fmt.Sprintf("10.129.%d.%d", i>>8, i&0xff), "phase": "Allocated",
		"owner": map[string]any{"pod": map[string]any{"name": "pod-" + id, "namespace": "bench", "containerID": id}}}
}

// holding is an allocated address, and the node that holds it.
type holding struct {
	owner api.AllocationOwner
	node  int
}

// drain allocates all remaining addresses of the pool, with 50 nodes, and returns their holders. It prints the rate of
// each 10,000, and of the first and the last 5,000.
func (x *ipamBench) drain(when string) (held []holding) {
	var mu sync.Mutex
	seen, full, marks := map[netip.Addr]bool{}, 0, []time.Duration{0} // marks are the times of each 5,000
	start := time.Now()
	took := func(addr netip.Addr, by holding) (again bool) {
		mu.Lock()
		defer mu.Unlock()
		again = seen[addr]
		seen[addr] = true
		held = append(held, by)
		if len(seen)%5000 == 0 {
			marks = append(marks, time.Since(start))
			say("%-12s 50 nodes: %5d addresses more, %4.0f/s", when, len(seen), rate(5000, marks, len(marks)-1))
		}
		return again
	}
	together(len(x.nodes), len(x.nodes), func(node, _ int) {
		for {
			owner, addr, err := x.allocate(node)
			if exhausted := (*allocator.ExhaustedError)(nil); errors.As(err, &exhausted) {
				mu.Lock()
				full++
				mu.Unlock()
				return
			}
			if err != nil || took(addr, holding{owner, node}) {
				x.b.Errorf("%s: error: %v, or given twice", addr, err)
				return
			}
		}
	})
	all := time.Since(start)
	listing := time.Now()
	objects, err := allocation.NewKubernetes(x.client).List(x.b.Context(), allocation.Filter{Pool: benchPool})
	listed := time.Since(listing)
	total := x.pool.Load().Total()
	if err != nil || int64(len(objects)) != total || full != len(x.nodes) {
		x.b.Errorf("%d of %d addresses are taken, and %d of %d nodes were answered so: %v", len(objects), total, full,
			len(x.nodes), err)
	}
	say("%-12s a list of the %d takes %.1f s", when, len(objects), listed.Seconds())
	left := len(seen) - 5000*(len(marks)-1)
	marks = append(marks, all)
	say("%-12s 50 nodes: all %d addresses are taken, %.0f/s; the first 5,000 %.0f/s, the last %d %.0f/s, the 5,000 before %.0f/s",
		when, len(objects), float64(len(seen))/all.Seconds(), rate(5000, marks, 1), left, rate(left, marks, len(marks)-1),
		rate(5000, marks, len(marks)-2))
	return held
}

// rate is the rate of many allocations between two successive times.
func rate(many int, marks []time.Duration, i int) float64 {
	return float64(many) / (marks[i] - marks[i-1]).Seconds()
}

// empty releases addresses in random order, each by its node.
func (x *ipamBench) empty(held []holding) {
	rand.Shuffle(len(held), func(i, j int) { held[i], held[j] = held[j], held[i] })
	took := together(len(x.nodes), len(held), func(_, i int) {
		if err := x.nodes[held[i].node].Release(x.b.Context(), held[i].owner); err != nil {
			x.b.Error(err)
		}
	})
	say("%-12s 50 nodes: %d addresses are released in random order, %.0f/s", "emptied", len(held),
		float64(len(held))/took.Seconds())
}

// restart measures the time from a controller's start until a node gets the only free address of the pool, which was
// released while no controller ran. It returns the address's new holder.
func (x *ipamBench) restart(last holding) holding {
	var took []float64
	for range 3 {
		x.stopController()
		if err := x.nodes[last.node].Release(x.b.Context(), last.owner); err != nil {
			x.b.Fatal(err)
		}
		start := time.Now()
		x.startController()
		for {
			owner, _, err := x.allocate(last.node)
			if err == nil {
				last.owner = owner
				break
			}
			if exhausted := (*allocator.ExhaustedError)(nil); !errors.As(err, &exhausted) {
				x.b.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		took = append(took, time.Since(start).Seconds())
	}
	slices.Sort(took)
	say("%-12s %d addresses held: %.1f s (%.1f to %.1f) until the first address", "restarted", x.pool.Load().Total()-1,
		took[1], took[0], took[2])
	return last
}

// sizes prints the largest objects.
func (x *ipamBench) sizes() {
	for what, name := range map[string]string{"our pool": benchPool, "a pool of one object, 5,000 used": onePool} {
		u, err := x.client.Resource(api.PoolResource).Get(x.b.Context(), name, metav1.GetOptions{})
		if err != nil {
			x.b.Fatal(err)
		}
		text, err := json.Marshal(u)
		if err != nil {
			x.b.Fatal(err)
		}
		say("%-12s %s is an object of %.1f KiB", "size", what, float64(len(text))/1024)
		if name == benchPool && len(text) > 64<<10 {
			x.b.Error("our pool is an object of more than 64 KiB")
		}
	}
}
