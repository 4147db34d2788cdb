package controller

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/controller/ordinals"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/ipam/allocator"
	"github.com/fairlead-cni/fairlead/ipam/pool"
)

// keptCooling is how long an address whose reservation has ended is not allocated.
const keptCooling = allocator.DefaultCooling

// statefulSets reserves addresses for the pods of StatefulSets that ask for IPPools: one of each family for each
// ordinal, reserved when the set appears and released with it. Existing reservations are read from the API before any
// is created, so the successor of a controller that was killed between two writes continues. Should two reserve an
// address for one ordinal at the same time, allocation.Standing decides which is released. Agents create missing
// reservations when they add a pod: those count as if created here.
//
// It also ends reservations for other kinds of objects when they are gone: see releaseReservations.
type statefulSets struct {
	client              dynamic.Interface
	store               allocation.Store
	world               *world
	news                <-chan struct{}
	sets, namespaces    cache.Store
	setFeed, spacesFeed cache.Controller
	events              record.EventRecorder
	metrics             *metrics
	every               api.ControllerIntervals
	log                 logr.Logger

	// reported is the last message about a set, and its time, by its UID. It is dropped with the leadership.
	reported map[types.UID]reported
	// checkedAt is when objects other than StatefulSets were last checked.
	checkedAt time.Time
}

// reported is a message and its time.
type reported struct {
	message string
	at      time.Time
}

func newStatefulSets(o Options, w *world, events record.EventRecorder, m *metrics) *statefulSets {
	s := &statefulSets{client: o.Client, store: allocation.NewKubernetes(o.Client), world: w, news: w.subscribe(),
		events: events, metrics: m, every: o.Intervals, log: o.Log.WithName("statefulsets")}
	s.sets, s.setFeed = feed(w, statefulSetResource(), func(set *appsv1.StatefulSet) *appsv1.StatefulSet {
		out := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: set.Namespace, Name: set.Name, UID: set.UID,
			DeletionTimestamp: set.DeletionTimestamp},
			Spec: appsv1.StatefulSetSpec{Replicas: set.Spec.Replicas, Ordinals: set.Spec.Ordinals}}
		out.Spec.Template.Annotations = set.Spec.Template.Annotations
		return out
	})
	s.namespaces, s.spacesFeed = feed(w, schema.GroupVersionResource{Version: "v1", Resource: "namespaces"},
		func(n *corev1.Namespace) *corev1.Namespace {
			return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Annotations: n.Annotations}}
		})
	return s
}

func statefulSetResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "statefulsets"}
}

// follow watches the API server until ctx ends.
func (s *statefulSets) follow(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { s.setFeed.RunWithContext(ctx) })
	running.Go(func() { s.spacesFeed.RunWithContext(ctx) })
	running.Wait()
}

func (s *statefulSets) synced() bool {
	return s.world.synced() && s.setFeed.HasSynced() && s.spacesFeed.HasSynced()
}

// run runs passes until ctx ends.
func (s *statefulSets) run(ctx context.Context) {
	s.reported, s.checkedAt = map[types.UID]reported{}, time.Time{}
	for {
		if s.synced() {
			s.pass(ctx)
		}
		if !pause(ctx, s.every.Sets, nil) || !pause(ctx, s.every.SetsAtLeast, s.news) {
			return
		}
	}
}

// pass makes one pass. What failed is retried by a later one.
func (s *statefulSets) pass(ctx context.Context) {
	kept := keptIn(listOf[api.IPAllocation](s.world.allocations))
	v := ordinals.NewView(listOf[api.IPPool](s.world.pools), listOf[corev1.Namespace](s.namespaces))
	missing, alive := 0, map[string]bool{}
	sets := listOf[appsv1.StatefulSet](s.sets)
	slices.SortFunc(sets, func(a, b *appsv1.StatefulSet) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	for _, set := range sets {
		if ctx.Err() != nil {
			return
		}
		alive[string(set.UID)] = true
		missing += s.serve(ctx, v.Needs(set), kept[string(set.UID)])
	}
	s.releaseReservations(ctx, kept, alive)
	s.metrics.keeping(kept, missing)
	for uid := range s.reported {
		if !alive[string(uid)] {
			delete(s.reported, uid)
		}
	}
}

// keptIn are allocations with a reservation, by its UID.
func keptIn(all []*api.IPAllocation) map[string][]api.IPAllocation {
	out := map[string][]api.IPAllocation{}
	for _, a := range all {
		if r := a.Spec.Reservation; r != nil {
			out[r.UID] = append(out[r.UID], *a)
		}
	}
	return out
}

// serve reserves what a set needs and ends its surplus reservations. It returns how many addresses are missing.
func (s *statefulSets) serve(ctx context.Context, n ordinals.Needs, have []api.IPAllocation) (missing int) {
	for _, a := range n.Surplus(have) {
		s.unreserve(ctx, a, "the StatefulSet does not need it")
	}
	rest := n.Missing(have)
	if len(rest) == 0 && n.Err == nil || n.Set.DeletionTimestamp != nil {
		delete(s.reported, n.Set.UID)
		return 0
	}
	var pools []pool.Pool
	if n.Err == nil {
		pools, n.Err = n.Choose(s.world.others())
	}
	var err error
	if n.Err == nil {
		rest, err = s.reserve(ctx, n, pools)
	}
	switch {
	case n.Err != nil:
		s.warn(n.Set, n.Err.Error())
	case err != nil:
		if ctx.Err() == nil && !passing(err) {
			s.log.Error(err, "reserving addresses failed, will retry", "statefulSet", n.Set.Namespace+"/"+n.Set.Name)
		}
	case len(rest) > 0:
		s.warn(n.Set, n.ShortageText(rest))
	default:
		delete(s.reported, n.Set.UID)
	}
	return len(rest)
}

// reserveTries is how often other addresses are chosen when agents were faster. Then the rest waits for a later pass.
const reserveTries = 10

// reserve creates missing reservations, by the API server's current state, and returns those that it could not create.
func (s *statefulSets) reserve(ctx context.Context, n ordinals.Needs, pools []pool.Pool) (
	rest []ordinals.Slot, err error) {
	have, err := s.store.List(ctx, allocation.Filter{UID: string(n.Set.UID)})
	if err != nil {
		return n.Missing(nil), err
	}
	rest = n.Missing(have)
	if rest, have, err = s.adopt(ctx, n, rest, have); err != nil || len(rest) == 0 {
		return rest, err
	}
	var made, others []ordinals.Choice // others: in use by another owner by now
	for range reserveTries {
		used := usedIn(listOf[api.IPAllocation](s.world.allocations), slices.Concat(have, n.Allocations(others)))
		chosen := n.Place(rest, have, pools, used)
		var got, taken []ordinals.Choice
		got, taken, err = s.createReservations(ctx, n, chosen)
		made, have = append(made, got...), append(have, n.Allocations(got)...)
		rest = n.Missing(have)
		if err != nil || len(taken) == 0 {
			break
		}
		others = append(others, taken...)
	}
	s.reportReserved(n.Set, made)
	return rest, err
}

// createReservations creates reservations. taken are addresses that were allocated to others meanwhile.
func (s *statefulSets) createReservations(ctx context.Context, n ordinals.Needs, chosen []ordinals.Choice) (
	made, taken []ordinals.Choice, err error) {
	for _, c := range chosen {
		_, err := s.store.Create(ctx, n.Allocation(c))
		var held *allocation.TakenError
		if errors.As(err, &held) {
			taken = append(taken, c)
			continue
		}
		if err != nil {
			return made, taken, err
		}
		made = append(made, c)
		s.log.Info("reserved address", "address", c.Addr, "pool", c.Pool, "owner", n.Reservation(c.Ordinal).String())
	}
	return made, taken, nil
}

// unreserve ends a reservation.
func (s *statefulSets) unreserve(ctx context.Context, a api.IPAllocation, why string) {
	err := allocation.Unreserve(ctx, s.store, a, keptCooling)
	switch {
	case err == nil:
		s.log.Info("released reservation", "address", a.Spec.Address, "pool", a.Spec.Pool, "owner",
			a.Spec.Reservation.String(), "phase", a.Spec.Phase, "reason", why)
		s.metrics.unkept.Inc()
	case ctx.Err() == nil && !errors.Is(err, allocation.ErrConflict) && !errors.Is(err, allocation.ErrNotFound):
		s.log.Error(err, "releasing address failed, will retry", "address", a.Spec.Address)
	}
}

// Reasons of the Events on StatefulSets.
const (
	reasonReserved    = "AddressesReserved"
	reasonNotReserved = "AddressAllocationFailed"
)

// warnAgain is how often the same is reported about a set.
const warnAgain = 5 * time.Minute

// warn writes a Warning on the set, rate limited.
func (s *statefulSets) warn(set *appsv1.StatefulSet, message string) {
	if last := s.reported[set.UID]; last.message == message && time.Since(last.at) < warnAgain {
		return
	}
	s.reported[set.UID] = reported{message, time.Now()}
	s.log.Info("cannot reserve addresses for a StatefulSet", "statefulSet", set.Namespace+"/"+set.Name, "reason", message)
	s.events.Event(refOf(set), corev1.EventTypeWarning, reasonNotReserved, message)
}

func (s *statefulSets) reportReserved(set *appsv1.StatefulSet, made []ordinals.Choice) {
	if len(made) > 0 {
		s.events.Event(refOf(set), corev1.EventTypeNormal, reasonReserved, "reserved "+textOf(made))
	}
}

func refOf(set *appsv1.StatefulSet) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "apps/v1", Kind: api.KindStatefulSet, Namespace: set.Namespace, Name: set.Name,
		UID: set.UID}
}

// textOf lists what was reserved: "10.2.0.4 for ordinal 0, …".
func textOf(made []ordinals.Choice) string {
	const most = 8
	var out []string
	for i, c := range made {
		if i == most {
			out = append(out, fmt.Sprintf("and %d more", len(made)-most))
			break
		}
		out = append(out, fmt.Sprintf("%s for ordinal %d", c.Addr, c.Ordinal))
	}
	return strings.Join(out, ", ")
}

// usedIn are all pod addresses in use, sorted.
func usedIn(all []*api.IPAllocation, more []api.IPAllocation) []netip.Addr {
	var out []netip.Addr
	add := func(name string) {
		if scope, addr, err := allocation.ParseName(name); err == nil && scope == "" {
			out = append(out, addr)
		}
	}
	for _, a := range all {
		add(a.Name)
	}
	for _, a := range more {
		add(a.Name)
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}
