package controller

import (
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/controller/evidence"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/ipam/pool"
)

var (
	nodes        = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	serviceCIDRs = schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1", Resource: "servicecidrs"}
)

// world is the state of the API server, as informers deliver it.
type world struct {
	client        dynamic.Interface
	log           logr.Logger
	servicesEvery time.Duration
	// listeners are notified of changes; changes in quick succession are merged.
	listeners []chan struct{}

	pools, allocations, nodes             cache.Store
	poolsFeed, allocationsFeed, nodesFeed cache.Controller

	mu       sync.Mutex
	services []netip.Prefix

	// changes counts the changes that listeners were notified of.
	changes atomic.Int64
}

// cached is what was computed from the world, until that changes. Its users do not change it. The zero value is empty.
type cached[T any] struct {
	at    int64 // world.changes, plus 1
	value T
}

// of returns the value, which compute computes.
func (c *cached[T]) of(w *world, compute func() T) T {
	if now := w.changes.Load() + 1; c.at != now {
		c.at, c.value = now, compute()
	}
	return c.value
}

func newWorld(o Options) *world {
	w := &world{client: o.Client, log: o.Log, servicesEvery: o.Intervals.Services}
	w.pools, w.poolsFeed = feed(w, api.PoolResource, func(p *api.IPPool) *api.IPPool {
		p.Status.IPAddresses = nil // Antrea's, and long
		return p
	})
	w.allocations, w.allocationsFeed = feed(w, api.AllocationResource, func(a *api.IPAllocation) *api.IPAllocation {
		return a
	})
	w.nodes, w.nodesFeed = nodeFeed(w, o.Kubernetes, func(n *corev1.Node) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion,
			CreationTimestamp: n.CreationTimestamp, DeletionTimestamp: n.DeletionTimestamp},
			Spec:   corev1.NodeSpec{PodCIDRs: n.Spec.PodCIDRs, Taints: evidence.Fences(n)},
			Status: corev1.NodeStatus{Addresses: n.Status.Addresses}}
	})
	return w
}

// feed watches the objects of one resource and keeps what of returns for each.
func feed[T any](w *world, r schema.GroupVersionResource, of func(*T) *T) (cache.Store, cache.Controller) {
	client := w.client.Resource(r)
	return inform[T](w, cache.ToListWatcherWithWatchListSemantics(listWatch(r, client.List, client.Watch), w.client),
		&unstructured.Unstructured{}, func(obj any) (any, error) {
			u, ok := obj.(*unstructured.Unstructured)
			if !ok { // transformed already
				return obj, nil
			}
			u.SetManagedFields(nil)
			t := new(T)
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, t); err != nil {
				return nil, fmt.Errorf("%s %s: %w", r.Resource, u.GetName(), err)
			}
			return of(t), nil
		})
}

// nodeFeed is feed for Nodes, whose heartbeats are most of a large cluster's watch traffic: they are read as protobuf,
// and not as JSON.
func nodeFeed(w *world, client kubernetes.Interface, of func(*corev1.Node) *corev1.Node) (
	cache.Store, cache.Controller) {
	all := client.CoreV1().Nodes()
	lists := listWatch(nodes, all.List, all.Watch)
	return inform[corev1.Node](w, cache.ToListWatcherWithWatchListSemantics(lists, client), &corev1.Node{},
		func(obj any) (any, error) {
			if n, ok := obj.(*corev1.Node); ok {
				return of(n), nil
			}
			return obj, nil
		})
}

func listWatch[L runtime.Object](r schema.GroupVersionResource,
	list func(context.Context, metav1.ListOptions) (L, error),
	watch func(context.Context, metav1.ListOptions) (watch.Interface, error)) *cache.ListWatch {
	return &cache.ListWatch{WatchFuncWithContext: watch,
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			l, err := list(ctx, o)
			if err != nil {
				return nil, unlisted(r, err)
			}
			return l, nil
		}}
}

// inform watches objects and keeps what keep returns for each.
func inform[T any](w *world, objects cache.ListerWatcher, object runtime.Object, keep cache.TransformFunc) (
	cache.Store, cache.Controller) {
	return cache.NewInformerWithOptions(cache.InformerOptions{ListerWatcher: objects, ObjectType: object, Transform: keep,
		Handler: cache.ResourceEventHandlerFuncs{AddFunc: func(any) { w.report() }, DeleteFunc: func(any) { w.report() },
			UpdateFunc: func(old, now any) {
				if !same[T](old, now) {
					w.report()
				}
			}},
	})
}

// same reports whether two versions of an object are equivalent: each Node has a heartbeat every five minutes, and a
// pass over all objects for each would be most of a large cluster's load.
func same[T any](old, now any) bool {
	before, ok := old.(*T)
	after, is := now.(*T)
	if !ok || !is {
		return false
	}
	b, a := *before, *after
	for _, t := range []*T{&b, &a} {
		if o, ok := any(t).(metav1.Object); ok {
			o.SetResourceVersion("")
		}
	}
	return reflect.DeepEqual(b, a)
}

// unlisted is the error of a list, with the resource: client-go does not name it.
func unlisted(r schema.GroupVersionResource, err error) error {
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("the resource %s is not installed: kubectl apply -f build/manifests/fairlead.yaml -l app.kubernetes.io/component=crds (%w)", r.GroupResource(), err)
	}
	return fmt.Errorf("listing %s: %w", r.GroupResource(), err)
}

// subscribe returns a channel that receives when there are changes. It must be called before follow.
func (w *world) subscribe() <-chan struct{} {
	c := make(chan struct{}, 1)
	w.listeners = append(w.listeners, c)
	return c
}

func (w *world) report() {
	w.changes.Add(1)
	for _, c := range w.listeners {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// follow watches the API server until ctx ends.
func (w *world) follow(ctx context.Context) {
	var running sync.WaitGroup
	for _, f := range []cache.Controller{w.poolsFeed, w.allocationsFeed, w.nodesFeed} {
		running.Go(func() { f.RunWithContext(ctx) })
	}
	for tick := time.NewTicker(w.servicesEvery); ; {
		w.readServices(ctx)
		select {
		case <-ctx.Done():
			running.Wait()
			return
		case <-tick.C:
		}
	}
}

// readServices reads the Service CIDRs. Kubernetes before 1.33 has no such objects.
func (w *world) readServices(ctx context.Context) {
	list, err := w.client.Resource(serviceCIDRs).List(ctx, metav1.ListOptions{})
	if err != nil {
		w.log.V(1).Info("cannot read ServiceCIDRs, pools are not checked against them", "reason", err.Error())
		return
	}
	var found []netip.Prefix
	for i := range list.Items {
		texts, _, err := unstructured.NestedStringSlice(list.Items[i].Object, "spec", "cidrs")
		for _, text := range texts {
			if p, perr := netip.ParsePrefix(text); perr == nil && err == nil {
				found = append(found, p)
			}
		}
	}
	w.mu.Lock()
	w.services = found
	w.mu.Unlock()
	w.report()
}

// synced reports whether the API server has reported all objects.
func (w *world) synced() bool {
	return w.poolsFeed.HasSynced() && w.allocationsFeed.HasSynced() && w.nodesFeed.HasSynced()
}

// others are the other users of addresses, except pools.
func (w *world) others() pool.Others {
	o := pool.Others{ServiceCIDRs: w.serviceCIDRs()}
	for _, n := range listOf[corev1.Node](w.nodes) {
		o.Nodes = append(o.Nodes, pool.Node{Name: n.Name, PodCIDRs: podCIDRs(n), Addresses: addresses(n)})
	}
	return o
}

// addresses are those of a Node.
func addresses(n *corev1.Node) (out []netip.Addr) {
	for _, a := range n.Status.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil {
			out = append(out, addr)
		}
	}
	return out
}

// bridged are the addresses that bridged pods have, or may get, by pool. A pool that yields allocates none.
func (w *world) bridged() map[string][]netip.Prefix {
	others, out := w.others(), map[string][]netip.Prefix{}
	for _, object := range listOf[api.IPPool](w.pools) {
		if p, err := pool.Read(*object); err == nil {
			others.Pools = append(others.Pools, p)
		}
	}
	others = others.Relevant()
	for _, p := range others.Pools {
		if p.Scope == "" && !pool.Yields(p.Overlaps(others)) {
			out[p.Name] = p.Allocatable()
		}
	}
	for _, a := range listOf[api.IPAllocation](w.allocations) {
		if scope, addr, err := allocation.ParseName(a.Name); err == nil && scope == "" {
			out[a.Spec.Pool] = append(out[a.Spec.Pool], netip.PrefixFrom(addr, addr.BitLen()))
		}
	}
	return out
}

func (w *world) serviceCIDRs() []netip.Prefix {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.services
}
