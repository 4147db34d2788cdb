package controller

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/controller/ordinals"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/ipam/allocator"
	"github.com/fairlead-cni/fairlead/ipam/pool"
)

// set creates a StatefulSet: each test has its own names and pools.
func (c *cluster) set(name string, replicas, start int32, annotations map[string]string) *appsv1.StatefulSet {
	c.t.Helper()
	labels := map[string]string{"app": name}
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	set.Spec = appsv1.StatefulSetSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
		Ordinals: &appsv1.StatefulSetOrdinals{Start: start}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: annotations},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "none"}}}}}
	made, err := c.s.Admin().AppsV1().StatefulSets("default").Create(c.t.Context(), set, metav1.CreateOptions{})
	must(c.t, err)
	c.t.Cleanup(func() { c.deleteSet(name) })
	return made
}

func (c *cluster) deleteSet(name string) {
	c.t.Helper()
	err := c.s.Admin().AppsV1().StatefulSets("default").Delete(context.Background(), name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		c.t.Error(err)
	}
}

func (c *cluster) scale(name string, replicas int) {
	c.t.Helper()
	_, err := c.s.Admin().AppsV1().StatefulSets("default").Patch(c.t.Context(), name, types.MergePatchType,
		fmt.Appendf(nil, `{"spec": {"replicas": %d}}`, replicas), metav1.PatchOptions{})
	must(c.t, err)
}

func (c *cluster) store() allocation.Store { return allocation.NewKubernetes(c.admin) }

// kept are the reservations for a set: "0=10.60.0.1 1=10.60.0.2!", with ! where a pod has it.
func (c *cluster) kept(uid types.UID) string {
	c.t.Helper()
	list, err := c.store().List(c.t.Context(), allocation.Filter{UID: string(uid)})
	must(c.t, err)
	slices.SortStableFunc(list, func(a, b api.IPAllocation) int {
		return a.Spec.Reservation.Ordinal - b.Spec.Reservation.Ordinal
	})
	var out []string
	for _, a := range list {
		text := fmt.Sprintf("%d=%s", a.Spec.Reservation.Ordinal, a.Spec.Address)
		if a.Spec.Phase == api.PhaseAllocated {
			text += "!"
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

func (c *cluster) keeps(uid types.UID, want string) {
	c.t.Helper()
	c.waits(func() string {
		if got := c.kept(uid); got != want {
			return fmt.Sprintf("kept are %q, want %q", got, want)
		}
		return ""
	})
}

// phase waits until an address is in a phase, "" for free, with or without a reservation.
func (c *cluster) phase(addr string, phase api.AllocationPhase, kept bool) {
	c.t.Helper()
	c.waits(func() string {
		a, err := c.store().Get(c.t.Context(), allocation.Name("", netip.MustParseAddr(addr)))
		if err != nil && !errors.Is(err, allocation.ErrNotFound) {
			return err.Error()
		}
		if a.Spec.Phase != phase || (a.Spec.Reservation != nil) != kept {
			return fmt.Sprintf("%s is %q kept for %v, want %q", addr, a.Spec.Phase, a.Spec.Reservation, phase)
		}
		return ""
	})
}

// reported waits for an Event on a set whose message has all parts.
func (c *cluster) reported(set *appsv1.StatefulSet, reason string, parts ...string) {
	c.t.Helper()
	c.event(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: set.Name, UID: set.UID}}, reason, parts...)
}

// add is an agent's ADD of a set's pod.
func (c *cluster) add(node string, set *appsv1.StatefulSet, ordinal int, p *api.IPPool) (
	*allocator.Allocator, api.AllocationOwner) {
	c.t.Helper()
	a := allocator.New(allocator.Config{Store: c.store(), Node: node, Cooling: time.Hour, Log: logr.Discard()})
	o := owner(fmt.Sprintf("%s-%d", set.Name, ordinal))
	read, err := pool.Read(*p)
	must(c.t, err)
	keep := &api.AllocationReservation{Kind: api.KindStatefulSet, Namespace: set.Namespace, Name: set.Name,
		UID: string(set.UID), Ordinal: ordinal}
	_, err = a.Allocate(c.t.Context(), allocator.Request{Pools: []pool.Pool{read}, Owner: o, Keep: keep})
	must(c.t, err)
	return a, o
}

func inPools(names string) map[string]string { return map[string]string{api.AnnotationPools: names} }

// One controller serves all of these.
func TestKubeStatefulSets(t *testing.T) {
	c := newCluster(t)
	url := c.start(api.NodeIPAM{})
	for _, test := range []struct {
		name string
		run  func(*testing.T, *cluster)
	}{{"block", checkBlock}, {"live", checkLivePods}, {"deleted", checkSetDeleted}, {"made again", checkMadeAgain},
		{"adopted", checkAdopted}, {"small", checkSmallPool}, {"families", checkFamilies}, {"named", checkNamed},
		{"agent first", checkAgentFirst}, {"wrong", checkWrongAnnotations}, {"pool deleted", checkPoolDeleted}} {
		t.Run(test.name, func(t *testing.T) { test.run(t, &cluster{t, c.admin, c.token, c.s, url, 0}) })
	}
}

// A new set gets one block, which follows its scale.
func checkBlock(t *testing.T, c *cluster) {
	c.create(poolOf("block", "10.2.60.1", "10.2.60.20"))
	a := c.allocator(0)
	c.allocate(a, "some", poolOf("block", "10.2.60.3", "10.2.60.3"))
	set := c.set("block", 3, 0, inPools("block"))
	c.keeps(set.UID, "0=10.2.60.4 1=10.2.60.5 2=10.2.60.6")
	c.reported(set, reasonReserved, "reserved 10.2.60.4 for ordinal 0", "10.2.60.6 for ordinal 2")
	c.scale("block", 5)
	c.keeps(set.UID, "0=10.2.60.4 1=10.2.60.5 2=10.2.60.6 3=10.2.60.7 4=10.2.60.8")
	c.scale("block", 2)
	c.keeps(set.UID, "0=10.2.60.4 1=10.2.60.5")
	c.phase("10.2.60.8", api.PhaseCooling, false)
	c.metric(c.url, "fairlead_statefulset_addresses_missing 0")
	c.release(a, "some")
}

// Addresses are scattered if there is no block. A pod keeps its address when the set is scaled down, until the pod is
// deleted.
func checkLivePods(t *testing.T, c *cluster) {
	p := poolOf("live", "10.2.61.1", "10.2.61.6")
	c.create(p)
	a := c.allocator(0)
	for _, n := range []int{2, 4, 6} {
		addr := fmt.Sprint("10.2.61.", n)
		c.allocate(a, addr, poolOf("live", addr, addr))
	}
	set := c.set("live", 3, 0, inPools("live"))
	c.keeps(set.UID, "0=10.2.61.1 1=10.2.61.3 2=10.2.61.5")
	agent, pod2 := c.add("n2", set, 2, p)
	c.scale("live", 1)
	c.keeps(set.UID, "0=10.2.61.1 2=10.2.61.5!")
	c.phase("10.2.61.3", api.PhaseCooling, false)
	time.Sleep(3 * short().Sets) // nothing more changes while the pod exists
	c.keeps(set.UID, "0=10.2.61.1 2=10.2.61.5!")
	must(t, agent.Release(t.Context(), pod2))
	c.keeps(set.UID, "0=10.2.61.1")
	c.phase("10.2.61.5", api.PhaseCooling, false)
	for _, n := range []int{2, 4, 6} {
		c.release(a, fmt.Sprint("10.2.61.", n))
	}
}

// Reservations end with the set. An address that a pod has is released by its DEL, even without a controller.
func checkSetDeleted(t *testing.T, c *cluster) {
	p := poolOf("gone", "10.2.62.1", "10.2.62.9")
	c.create(p)
	set := c.set("gone", 2, 0, inPools("gone"))
	c.keeps(set.UID, "0=10.2.62.1 1=10.2.62.2")
	agent, pod0 := c.add("n1", set, 0, p)
	c.deleteSet("gone")
	c.phase("10.2.62.2", api.PhaseCooling, false)
	c.phase("10.2.62.1", api.PhaseAllocated, false)
	must(t, agent.Release(t.Context(), pod0))
	c.phase("10.2.62.1", api.PhaseCooling, false)
}

// A recreated set of the same name is another one. It gets no address that pods of the old one still have.
func checkMadeAgain(t *testing.T, c *cluster) {
	p := poolOf("again", "10.2.63.1", "10.2.63.9")
	c.create(p)
	first := c.set("again", 2, 0, inPools("again"))
	c.keeps(first.UID, "0=10.2.63.1 1=10.2.63.2")
	agent, pod0 := c.add("n1", first, 0, p)
	c.deleteSet("again")
	second := c.set("again", 2, 0, inPools("again"))
	c.phase("10.2.63.1", api.PhaseAllocated, false)
	c.waits(func() string {
		if got := c.kept(second.UID); strings.Count(got, "=") != 2 || strings.Contains(got, "10.2.63.1") {
			return "the second has " + got
		}
		return ""
	})
	before := c.kept(second.UID)
	must(t, agent.Release(t.Context(), pod0))
	c.phase("10.2.63.1", api.PhaseCooling, false)
	if now := c.kept(second.UID); now != before {
		t.Errorf("the second had %s, and has %s", before, now)
	}
}

// Pods that a set adopts (--cascade=orphan, then recreated) keep their addresses; the set does not get those of other
// pods.
func checkAdopted(t *testing.T, c *cluster) {
	p := poolOf("orphan", "10.2.64.1", "10.2.64.9")
	c.create(p)
	first := c.set("orphan", 2, 0, inPools("orphan"))
	c.keeps(first.UID, "0=10.2.64.1 1=10.2.64.2")
	c.deleteSet("orphan")
	c.phase("10.2.64.2", api.PhaseCooling, false)
	stranger := c.pod("orphan-0", nil)
	for _, addr := range []string{"10.2.64.5", "10.2.64.7"} { // of orphan-0, and of orphan-1
		name := map[string]string{"10.2.64.5": "orphan-0", "10.2.64.7": "orphan-1"}[addr]
		c.allocate(c.allocator(0), name, poolOf("orphan", addr, addr))
	}
	c.ofPod("10.2.64.5", stranger.UID)
	set := c.setUnseen("orphan", 2, func(set *appsv1.StatefulSet) {
		adopted := c.pod("orphan-1", set)
		c.ofPod("10.2.64.7", adopted.UID)
	})
	c.waits(func() string {
		got := c.kept(set.UID)
		if !strings.HasSuffix(got, "1=10.2.64.7!") || strings.Contains(got, "10.2.64.5") || strings.Count(got, "=") != 2 {
			return "kept are " + got
		}
		return ""
	})
	c.phase("10.2.64.5", api.PhaseAllocated, false)
}

// setUnseen creates a set without replicas, runs f, and then sets its replicas.
func (c *cluster) setUnseen(name string, replicas int, f func(*appsv1.StatefulSet)) *appsv1.StatefulSet {
	c.t.Helper()
	set := c.set(name, 0, 0, inPools(name))
	f(set)
	c.scale(name, replicas)
	return set
}

// pod creates a Pod, of a set unless that is nil.
func (c *cluster) pod(name string, of *appsv1.StatefulSet) *corev1.Pod {
	c.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "none"}}}}
	if of != nil {
		pod.OwnerReferences = []metav1.OwnerReference{
			*metav1.NewControllerRef(of, appsv1.SchemeGroupVersion.WithKind("StatefulSet"))}
	}
	made, err := c.s.Admin().CoreV1().Pods("default").Create(c.t.Context(), pod, metav1.CreateOptions{})
	must(c.t, err)
	c.t.Cleanup(func() {
		now := int64(0)
		err := c.s.Admin().CoreV1().Pods("default").Delete(context.Background(), name,
			metav1.DeleteOptions{GracePeriodSeconds: &now})
		if err != nil {
			c.t.Error(err)
		}
	})
	return made
}

// ofPod writes a pod's UID into the owner of an address.
func (c *cluster) ofPod(addr string, uid types.UID) {
	c.t.Helper()
	a, err := c.store().Get(c.t.Context(), addr)
	must(c.t, err)
	a.Spec.Owner.PodUID = string(uid)
	_, err = c.store().Update(c.t.Context(), a)
	must(c.t, err)
}

// An address that cannot be reserved is reported on the set, and reserved as soon as the pool is larger.
func checkSmallPool(t *testing.T, c *cluster) {
	c.create(poolOf("little", "10.2.65.1", "10.2.65.2"))
	set := c.set("little", 4, 0, inPools("little"))
	c.keeps(set.UID, "0=10.2.65.1 1=10.2.65.2")
	c.reported(set, reasonNotReserved, "reserving an address for little-2, little-3 failed: no address is free in IPPool little: extend")
	c.metric(c.url, "fairlead_statefulset_addresses_missing 2")
	_, err := c.pools().Patch(t.Context(), "little", types.MergePatchType,
		[]byte(`{"spec": {"ipRanges": [{"start": "10.2.65.1", "end": "10.2.65.9"}]}}`), metav1.PatchOptions{})
	must(t, err)
	c.keeps(set.UID, "0=10.2.65.1 1=10.2.65.2 2=10.2.65.3 3=10.2.65.4")
	c.metric(c.url, "fairlead_statefulset_addresses_missing 0")
}

// Two families by the Namespace's annotation, starting at an ordinal other than 0.
func checkFamilies(t *testing.T, c *cluster) {
	c.create(poolOf("fam4", "10.2.66.1", "10.2.66.9"))
	six := poolOf("fam6", "fd66::1", "fd66::9")
	six.Spec.SubnetInfo.Gateway, six.Spec.SubnetInfo.PrefixLength = "fe80::1", 64
	c.create(six)
	annotate := func(value string) {
		_, err := c.s.Admin().CoreV1().Namespaces().Patch(context.Background(), "default", types.MergePatchType,
			fmt.Appendf(nil, `{"metadata": {"annotations": {%q: %s}}}`, api.AnnotationPools, value), metav1.PatchOptions{})
		must(t, err)
	}
	annotate(`"fam4, fam6"`)
	t.Cleanup(func() { annotate("null") })
	set := c.set("families", 2, 7, nil)
	c.keeps(set.UID, "7=10.2.66.1 7=fd66::1 8=10.2.66.2 8=fd66::2")
	annotate(`"fam6"`)
	c.keeps(set.UID, "7=fd66::1 8=fd66::2")
	annotate("null")
	c.keeps(set.UID, "")
}

// Addresses named in the template are assigned to its pods in order.
func checkNamed(t *testing.T, c *cluster) {
	p := poolOf("named", "10.2.67.1", "10.2.67.9")
	c.create(p)
	a := c.allocator(0)
	c.allocate(a, "other", poolOf("named", "10.2.67.2", "10.2.67.2"))
	set := c.set("named", 4, 0, map[string]string{api.AnnotationPools: "named", api.AnnotationPodIPs: "10.2.67.5,10.2.67.2,10.2.67.4"})
	c.keeps(set.UID, "0=10.2.67.5 2=10.2.67.4")
	c.reported(set, reasonNotReserved, "reserving an address for named-1, named-3 failed")
	c.scale("named", 3)
	c.reported(set, reasonNotReserved, "reserving an address for named-1 failed: 10.2.67.2, which the annotation ipam.antrea.io/pod-ips names, "+
		"has another owner: kubectl get ipallocation 10.2.67.2 shows it")
	c.release(a, "other")
	c.keeps(set.UID, "0=10.2.67.5 1=10.2.67.2 2=10.2.67.4")
}

// An agent was first and has made a reservation; the rest of the block is placed around it.
func checkAgentFirst(t *testing.T, c *cluster) {
	p := poolOf("faster", "10.2.68.1", "10.2.68.20")
	c.create(p)
	var agent *allocator.Allocator
	var o api.AllocationOwner
	set := c.setUnseen("faster", 4, func(set *appsv1.StatefulSet) {
		agent, o = c.add("n1", set, 1, poolOf("faster", "10.2.68.7", "10.2.68.7"))
	})
	c.keeps(set.UID, "0=10.2.68.6 1=10.2.68.7! 2=10.2.68.8 3=10.2.68.9")
	must(t, agent.Release(t.Context(), o))
	c.keeps(set.UID, "0=10.2.68.6 1=10.2.68.7 2=10.2.68.8 3=10.2.68.9")
}

// Errors in a set's annotations are reported on it.
func checkWrongAnnotations(t *testing.T, c *cluster) {
	c.create(poolOf("right", "10.2.69.1", "10.2.69.20"))
	for name, w := range map[string]struct {
		annotations map[string]string
		want        string
	}{
		"misspelt": {inPools("rihgt"), "StatefulSet default/misspelt asks for IPPool rihgt: there is no such IPPool. There "},
		"outside": {map[string]string{api.AnnotationPools: "right", api.AnnotationPodIPs: "10.2.69.99"},
			"10.2.69.99 is outside of pool right. Choose another address"},
		"value": {map[string]string{api.AnnotationPools: "right", api.AnnotationSticky: "yes"},
			`StatefulSet default/value: annotation ipam.fairlead.dev/sticky is "yes": write address`},
	} {
		set := c.set(name, 1, 0, w.annotations)
		c.reported(set, reasonNotReserved, w.want)
		c.keeps(set.UID, "")
	}
}

// Reserved addresses without a pod do not block the deletion of a pool.
func checkPoolDeleted(t *testing.T, c *cluster) {
	p := poolOf("dying", "10.2.70.1", "10.2.70.9")
	c.create(p)
	c.until("dying", "0/9")
	set := c.set("dying", 2, 0, inPools("dying"))
	c.keeps(set.UID, "0=10.2.70.1 1=10.2.70.2")
	agent, o := c.add("n1", set, 0, p)
	must(t, c.pools().Delete(t.Context(), "dying", metav1.DeleteOptions{}))
	c.keeps(set.UID, "0=10.2.70.1!")
	c.reported(set, reasonNotReserved, "it is being deleted")
	must(t, agent.Release(t.Context(), o))
	c.keeps(set.UID, "")
	c.cooled("dying")
	c.untilGone("dying")
}

// cooled ends the cooling of a pool's addresses early.
func (c *cluster) cooled(pool string) {
	c.t.Helper()
	for _, a := range c.all() {
		if a.Spec.Pool == pool && a.Spec.Phase == api.PhaseCooling {
			now := api.NewMicroTime(time.Now())
			a.Spec.Until = &now
			_, err := c.store().Update(c.t.Context(), a)
			must(c.t, err)
		}
	}
}

// breaking is a client whose writes fail from the n-th on. With lost, the n-th is executed and only its response is
// lost.
type breaking struct {
	next   http.RoundTripper
	left   atomic.Int64
	lost   bool
	broken func()
}

func (b *breaking) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet || !strings.Contains(r.URL.Path, "ipallocations") {
		return b.next.RoundTrip(r)
	}
	left := b.left.Add(-1)
	if left > 0 {
		return b.next.RoundTrip(r)
	}
	if left == 0 && b.lost {
		if resp, err := b.next.RoundTrip(r); err == nil {
			resp.Body.Close()
		}
	}
	b.broken()
	return nil, errors.New("killed")
}

// sets runs the controller of StatefulSets alone until ctx ends, without leader election.
func (c *cluster) sets(ctx context.Context, wrap func(http.RoundTripper) http.RoundTripper) (done *sync.WaitGroup) {
	c.t.Helper()
	cfg := c.config(c.token)
	cfg.WrapTransport = wrap
	client, err := dynamic.NewForConfig(rest.CopyConfig(cfg))
	must(c.t, err)
	w := newWorld(c.options(client))
	s := newStatefulSets(c.options(client), w, record.NewFakeRecorder(1000), newMetrics("test"))
	done = &sync.WaitGroup{}
	for _, f := range []func(context.Context){w.follow, s.follow, s.run} {
		done.Go(func() { f(ctx) })
	}
	return done
}

// Whichever write a controller is killed before or after, and with two running at once: in the end each ordinal has one
// address of each family, and nothing is reserved twice.
func TestKubeStatefulSetsKilled(t *testing.T) {
	c := newCluster(t)
	c.create(poolOf("killed4", "10.2.80.1", "10.2.80.200"))
	six := poolOf("killed6", "fd80::1", "fd80::200")
	six.Spec.SubnetInfo.Gateway, six.Spec.SubnetInfo.PrefixLength = "fe80::1", 64
	c.create(six)
	var uids []types.UID
	for i := range 4 {
		uids = append(uids, c.set(fmt.Sprint("killed-", i), 3, 0, inPools("killed4,killed6")).UID)
	}
	for n := range 6 {
		for _, lost := range []bool{false, true} {
			var both []*sync.WaitGroup
			for range 2 {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				b := &breaking{lost: lost, broken: cancel}
				b.left.Store(int64(n + 1))
				both = append(both, c.sets(ctx, func(next http.RoundTripper) http.RoundTripper { b.next = next; return b }))
			}
			for _, done := range both {
				done.Wait()
			}
		}
		c.scale(fmt.Sprint("killed-", n%4), 3+n%3)
	}
	ctx, cancel := context.WithCancel(t.Context())
	both := []*sync.WaitGroup{c.sets(ctx, nil), c.sets(ctx, nil)}
	// The result must be stable: of two reservations made at the same moment, a later pass releases one.
	right := 0
	c.waits(func() string {
		for i, uid := range uids {
			if wrong := c.once(uid, 3+[]int{1, 2, 2, 0}[i]); wrong != "" {
				right = 0
				return wrong
			}
		}
		if right++; right < 20 {
			return fmt.Sprintf("all is right in %d looks", right)
		}
		return ""
	})
	cancel()
	for _, done := range both {
		done.Wait()
	}
}

// once returns an error message unless each of n ordinals has one address of each family.
func (c *cluster) once(uid types.UID, n int) string {
	c.t.Helper()
	list, err := c.store().List(c.t.Context(), allocation.Filter{UID: string(uid)})
	must(c.t, err)
	has := map[ordinals.Slot]int{}
	for _, a := range list {
		s, _, _ := ordinals.SlotOf(a)
		has[s]++
	}
	for s, times := range has {
		if times != 1 || s.Ordinal >= n {
			return fmt.Sprintf("%v is there %d times, of %d ordinals: %s", s, times, n, c.kept(uid))
		}
	}
	if len(has) != 2*n {
		return fmt.Sprintf("%d of %d: %s", len(has), 2*n, c.kept(uid))
	}
	return ""
}

// A reservation for a Deployment ends with it, or when it no longer requests one; a pod keeps its address.
func TestKubeKeepers(t *testing.T) {
	c := newCluster(t)
	p := poolOf("keepers", "10.2.90.1", "10.2.90.9")
	c.create(p)
	labels := map[string]string{"app": "web"}
	uids := map[string]types.UID{"none": "no-such-uid"}
	deployments := c.s.Admin().AppsV1().Deployments("default")
	for _, name := range []string{"asks", "deleted", "silent"} {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "none"}}}}}}
		if name != "silent" {
			d.Spec.Template.Annotations = map[string]string{api.AnnotationSticky: api.StickyMAC}
		}
		made, err := deployments.Create(t.Context(), d, metav1.CreateOptions{})
		must(t, err)
		uids[name] = made.UID
	}
	addrs := map[string]string{}
	for i, name := range []string{"asks", "deleted", "silent", "none"} {
		addrs[name] = fmt.Sprint("10.2.90.", i+1)
		c.reserve(addrs[name], p, &api.AllocationReservation{Kind: api.KindDeployment, Namespace: "default", Name: name,
			UID: string(uids[name])})
	}
	vm := "10.2.90.6" // the cluster no longer serves VMs
	c.reserve(vm, p, &api.AllocationReservation{Kind: api.KindVM, Namespace: "default", Name: "vm", UID: "vm"})
	later := "10.2.90.7"
	c.reserve(later, p, &api.AllocationReservation{Kind: "Later", Namespace: "default", Name: "x", UID: "x"})
	must(t, deployments.Delete(t.Context(), "deleted", metav1.DeleteOptions{}))
	ctx, cancel := context.WithCancel(t.Context())
	done := c.sets(ctx, nil)
	for _, name := range []string{"deleted", "silent", "none"} {
		c.phase(addrs[name], api.PhaseCooling, false)
	}
	c.phase(vm, api.PhaseCooling, false)
	c.phase(addrs["asks"], api.PhaseReserved, true)
	c.phase(later, api.PhaseReserved, true)
	cancel()
	done.Wait()
	for _, name := range []string{"asks", "silent"} {
		must(t, deployments.Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
}

func (c *cluster) reserve(addr string, p *api.IPPool, keep *api.AllocationReservation) {
	c.t.Helper()
	_, err := c.store().Create(c.t.Context(), api.IPAllocation{ObjectMeta: metav1.ObjectMeta{Name: addr},
		Spec: api.IPAllocationSpec{Address: addr, Pool: p.Name, Phase: api.PhaseReserved, Reservation: keep}})
	must(c.t, err)
}
