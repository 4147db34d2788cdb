package controller

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/ipam/nodecidr"
)

// ipam is a NodeIPAM config.
func ipam(cidrs ...string) api.NodeIPAM {
	n := api.NodeIPAM{Enabled: true, MaskSizeIPv4: 24, MaskSizeIPv6: 64}
	for _, c := range cidrs {
		n.ClusterCIDRs = append(n.ClusterCIDRs, netip.MustParsePrefix(c))
	}
	return n
}

// node creates a Node, which is deleted with the test.
func (c *cluster) node(name string, podCIDRs ...string) *corev1.Node {
	c.t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDRs: podCIDRs}}
	if len(podCIDRs) > 0 {
		n.Spec.PodCIDR = podCIDRs[0]
	}
	n, err := c.s.Admin().CoreV1().Nodes().Create(c.t.Context(), n, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { c.deleteNode(context.Background(), name) })
	return n
}

func (c *cluster) deleteNode(ctx context.Context, name string) {
	c.t.Helper()
	err := c.s.Admin().CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		c.t.Error(err)
	}
}

// podCIDRs are the podCIDRs of a Node, as text.
func (c *cluster) podCIDRs(name string) string {
	c.t.Helper()
	n, err := c.s.Admin().CoreV1().Nodes().Get(c.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return strings.Join(n.Spec.PodCIDRs, ",")
}

func (c *cluster) claims() []api.PodCIDRClaim {
	c.t.Helper()
	list, err := c.admin.Resource(api.ClaimResource).List(c.t.Context(), metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	var out []api.PodCIDRClaim
	for i := range list.Items {
		var one api.PodCIDRClaim
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, &one); err != nil {
			c.t.Fatal(err)
		}
		out = append(out, one)
	}
	return out
}

// waits polls until f returns "".
func (c *cluster) waits(f func() (missing string)) {
	c.t.Helper()
	for start := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		missing := f()
		if missing == "" {
			return
		}
		if time.Since(start) > patience {
			c.t.Fatalf("not after %s: %s", patience, missing)
		}
	}
}

func (c *cluster) has(name, podCIDRs string) {
	c.t.Helper()
	c.waits(func() string {
		if got := c.podCIDRs(name); got != podCIDRs {
			return fmt.Sprintf("node %s has podCIDRs %q, want %q", name, got, podCIDRs)
		}
		return ""
	})
}

// event waits for an Event about a Node whose message has all parts.
func (c *cluster) event(node *corev1.Node, reason string, parts ...string) {
	c.t.Helper()
	c.waits(func() string { return c.noEvent(node, reason, parts...) })
}

// noEvent returns "" if there is such an Event, otherwise an error message.
func (c *cluster) noEvent(node *corev1.Node, reason string, parts ...string) string {
	list, err := c.s.Admin().CoreV1().Events("default").List(c.t.Context(), metav1.ListOptions{
		FieldSelector: "involvedObject.uid=" + string(node.UID) + ",reason=" + reason})
	if err != nil {
		return err.Error()
	}
	var all []string
	for _, e := range list.Items {
		all = append(all, e.Message)
		if !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(e.Message, p) }) {
			return ""
		}
	}
	return fmt.Sprintf("no Event %s about %s with %q: %q", reason, node.Name, parts, all)
}

// metric waits until the controller at url serves a line.
func (c *cluster) metric(url, line string) {
	c.t.Helper()
	c.waits(func() string {
		answer, err := http.Get(url + "/metrics")
		if err != nil {
			return err.Error()
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil || !strings.Contains(string(text), "\n"+line+"\n") {
			return fmt.Sprintf("no metric %s", line)
		}
		return ""
	})
}

// condition waits for a condition of a range.
func (c *cluster) condition(name, kind, reason string) {
	c.t.Helper()
	c.waits(func() string {
		u, err := c.admin.Resource(api.RangeResource).Get(c.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
		for _, one := range conditions {
			if o, _ := one.(map[string]any); o["type"] == kind && o["reason"] == reason {
				return ""
			}
		}
		return fmt.Sprintf("range %s is not %s %s: %v", name, kind, reason, u.Object["status"])
	})
}

// stoppable starts a controller and returns a function that stops it before the test ends.
func (c *cluster) stoppable(cfg api.NodeIPAM) (url string, stop func()) {
	c.t.Helper()
	whole := c.t
	ctx, cancel := context.WithCancel(whole.Context())
	url, done := c.startIn(ctx, cfg, nil)
	return url, sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			whole.Error(err)
		}
	})
}

func TestKubeNodesGetPodCIDRs(t *testing.T) {
	c := newCluster(t)
	cfg := ipam("10.70.0.0/22", "fd00:70::/62")
	cfg.ServiceCIDR = netip.MustParsePrefix("10.70.1.0/24")
	url, stop := c.stoppable(cfg)
	c.node("n1")
	c.has("n1", "10.70.0.0/24,fd00:70::/64")
	n2 := c.node("n2")
	c.has("n2", "10.70.2.0/24,fd00:70:0:1::/64")
	c.node("n3")
	c.has("n3", "10.70.3.0/24,fd00:70:0:2::/64")
	n4 := c.node("n4")
	c.event(n4, api.EventCIDRNotAvailable, "no IPv4 podCIDR is left: 10.70.0.0/22 cut into /24 has 4", "nodeIPAM.clusterCIDRs")
	c.condition("10.70.0.0-22", api.RangeReady, api.ReasonExhausted)
	c.condition("fd00-0070-0000-0000-0000-0000-0000-0000-62", api.RangeReady, api.ReasonAvailable)
	for _, line := range []string{"fairlead_nodes_without_podcidr 1", `fairlead_podcidrs_used{range="10.70.0.0/22"} 4`,
		`fairlead_podcidrs{range="10.70.0.0/22"} 4`} {
		c.metric(url, line)
	}
	if got := len(c.claims()); got != 6 {
		t.Errorf("%d claims, want two for each of three Nodes: %v", got, c.claims())
	}

	// Another CIDR serves the waiting Nodes. Nodes keep what they have.
	stop()
	cfg.ClusterCIDRs = append(cfg.ClusterCIDRs, netip.MustParsePrefix("10.71.0.0/16"))
	url, stop = c.stoppable(cfg)
	defer stop()
	c.has("n4", "10.71.0.0/24,fd00:70:0:3::/64")
	c.has("n2", "10.70.2.0/24,fd00:70:0:1::/64")
	c.metric(url, "fairlead_nodes_without_podcidr 0")

	// A deleted Node releases its podCIDRs; a new Node of the same name is another one.
	c.deleteNode(t.Context(), "n2")
	c.waits(func() string {
		if slices.ContainsFunc(c.claims(), func(p api.PodCIDRClaim) bool { return p.Spec.NodeUID == string(n2.UID) }) {
			return "the claims of a Node that is gone are still there"
		}
		return ""
	})
	c.node("n2")
	c.has("n2", "10.70.2.0/24,fd00:70:0:1::/64")

	// The object of a range that is removed from the config is deleted.
	stop()
	_, stop = c.stoppable(ipam("10.71.0.0/16"))
	defer stop()
	c.waits(func() string {
		_, err := c.admin.Resource(api.RangeResource).Get(t.Context(), "10.70.0.0-22", metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return fmt.Sprintf("the range is still there: %v", err)
		}
		return ""
	})

	// All of them are deleted when NodeIPAM is disabled: readers would assume that podCIDRs are cut from them.
	stop()
	_, stop = c.stoppable(api.NodeIPAM{})
	defer stop()
	c.waits(func() string {
		list, err := c.admin.Resource(api.RangeResource).List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) > 0 {
			return fmt.Sprintf("NodeIPAM is off, and there are %d ranges, %v", len(list.Items), err)
		}
		return ""
	})
}

// No podCIDR is assigned in which an IPPool has addresses for pods. A pool that yields, like one that overlaps a
// podCIDR, reserves only the addresses that its pods have.
func TestKubePodCIDRsLeaveOutPools(t *testing.T) {
	c := newCluster(t)
	pool := func(name, network, cidr, gateway string, length int, excludes ...string) {
		p := &api.IPPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: api.IPPoolSpec{IPVersion: 4, Excludes: excludes,
			IPRanges: []api.IPRange{{CIDR: cidr, SubnetInfo: api.SubnetInfo{Gateway: gateway, PrefixLength: length}}}}}
		if network != "" {
			p.Annotations = map[string]string{api.AnnotationNetwork: network}
		}
		c.create(p)
	}
	pool("lan", "", "10.81.1.0/24", "10.81.1.1", 24)
	pool("wide", "", "10.81.0.0/21", "10.81.7.1", 21, "10.81.1.0/24")
	pool("isolated", "x", "10.81.3.0/24", "10.81.3.1", 24)
	c.node("first", "10.81.0.0/24") // wide yields to it
	store := allocation.NewKubernetes(c.admin)
	held, err := store.Create(t.Context(), api.IPAllocation{ObjectMeta: metav1.ObjectMeta{Name: "10.81.2.7"},
		Spec: api.IPAllocationSpec{Address: "10.81.2.7", Pool: "wide", Phase: api.PhaseAllocated, Owner: owner("pod")}})
	must(t, err)
	t.Cleanup(func() { must(t, store.Delete(context.Background(), held)) })
	_, stop := c.stoppable(ipam("10.81.0.0/22"))
	defer stop()
	c.node("second")
	c.has("second", "10.81.3.0/24")
	c.event(c.node("third"), api.EventCIDRNotAvailable, "has 4, and all are in use, 2 by IPPools lan, wide")
	c.has("third", "")
}

// The podCIDR of a deleted Node is not assigned again while a Pod there may have an address of it, or before the grace
// period has passed: its machine may still be running.
func TestKubePodCIDROfADeletedNodeIsKept(t *testing.T) {
	c := newCluster(t)
	ctx, cancel := context.WithCancel(t.Context())
	cfg := api.ControllerConfig{NodeIPAM: ipam("10.82.0.0/23"), Reclaim: api.Reclaim{GracePeriod: 2 * time.Second}}
	_, done := c.startWith(ctx, cfg, nil)
	t.Cleanup(func() { cancel(); must(t, <-done) })
	c.node("a")
	c.node("b")
	c.waits(c.noneTwice)
	block := c.podCIDRs("a")
	pod, waiting := c.podOn("p", "a"), c.node("waiting")
	c.event(waiting, api.EventCIDRNotAvailable, "10.82.0.0/23 cut into /24 has 2, and all are in use. Add")
	c.deleteNode(ctx, "a")
	c.event(waiting, api.EventCIDRNotAvailable, "and all are in use, 1 of a deleted Node whose pods may still run. Add")
	c.node("a") // its kubelet has registered it again, and the Pod is older
	for start := time.Now(); time.Since(start) < 2*cfg.Reclaim.GracePeriod; time.Sleep(50 * time.Millisecond) {
		if got := c.podCIDRs("waiting") + c.podCIDRs("a"); got != "" {
			t.Fatalf("a Node gets %s, though a Pod there may have an address of it", got)
		}
	}
	now := int64(0)
	gone := time.Now()
	must(t, c.s.Admin().CoreV1().Pods("default").Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}))
	c.waits(func() string { // either Node may get it: creation times are in whole seconds
		if got := c.podCIDRs("waiting") + c.podCIDRs("a"); got != block {
			return "the Nodes that wait have " + got
		}
		return ""
	})
	if took := time.Since(gone); took < cfg.Reclaim.GracePeriod/4 { // the last check that saw the Pod was earlier
		t.Errorf("assigned %s after the Pod was gone, want the grace period between two looks", took)
	}
}

func TestKubeFaultyPodCIDRsAreReportedAndStay(t *testing.T) {
	c := newCluster(t)
	a, b := c.node("a", "10.72.0.0/24"), c.node("b", "10.72.0.0/24")
	out := c.node("out", "10.99.0.0/24")
	url, stop := c.stoppable(ipam("10.72.0.0/16"))
	defer stop()
	for _, n := range []*corev1.Node{a, b} {
		c.event(n, api.EventInvalidPodCIDR, "nodes a and b have the same podCIDR 10.72.0.0/24")
	}
	c.event(out, api.EventInvalidPodCIDR, "10.99.0.0/24, which is in no CIDR of nodeIPAM.clusterCIDRs")
	c.metric(url, `fairlead_podcidr_problems{kind="Shared"} 1`)
	c.metric(url, `fairlead_podcidr_problems{kind="Outside"} 1`)
	c.node("new")
	c.has("new", "10.72.1.0/24")
	c.has("out", "10.99.0.0/24")
}

// A block that a controller claimed before it died is assigned by the next one.
func TestKubeClaimedBlockIsGiven(t *testing.T) {
	c := newCluster(t)
	n := c.node("n")
	ours := newNodeIPAM(c.options(c.admin), newWorld(c.options(c.admin)), nil, nil)
	must(t, ours.claim(t.Context(), netip.MustParsePrefix("10.73.7.0/24"), nodecidr.Assignment{Node: n.Name, UID: string(n.UID)}))
	gone := c.node("gone")
	must(t, ours.claim(t.Context(), netip.MustParsePrefix("10.73.8.0/24"), nodecidr.Assignment{Node: gone.Name, UID: string(gone.UID)}))
	c.deleteNode(t.Context(), "gone")
	_, stop := c.stoppable(ipam("10.73.0.0/16"))
	defer stop()
	c.has("n", "10.73.7.0/24")
	c.waits(func() string {
		if all := c.claims(); len(all) != 1 {
			return fmt.Sprintf("claims %v, want that of n alone", all)
		}
		return ""
	})
}

// A running allocator of kube-controller-manager is reported, and assignments stop: here it is first detected by its
// assignments.
func TestKubeOtherAllocator(t *testing.T) {
	c := newCluster(t)
	url, stop := c.stoppable(ipam("10.74.0.0/16"))
	defer stop()
	c.node("n1")
	c.has("n1", "10.74.0.0/24")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	kcm, err := c.s.StartKCM(ctx, "--allocate-node-cidrs", "--cluster-cidr=10.74.0.0/16")
	must(t, err)
	defer kcm.Stop()
	// Either allocator may be the first for a Node; sooner or later it is kube-controller-manager's, which makes no
	// claim.
	var last *corev1.Node
	for i := 0; last == nil; i++ {
		n := c.node(fmt.Sprint("race", i))
		c.waits(func() string {
			if c.podCIDRs(n.Name) == "" {
				return "no allocator assigns a podCIDR"
			}
			return ""
		})
		// It may assign the block that the controller is about to claim for this Node: then the origin is ambiguous.
		c.waits(func() string {
			if slices.ContainsFunc(c.claims(), func(p api.PodCIDRClaim) bool { return p.Spec.PodCIDR == c.podCIDRs(n.Name) }) {
				return ""
			}
			wrong := c.noEvent(n, api.EventOtherAllocatorActive)
			if wrong == "" {
				last = n
			}
			return wrong
		})
		if i == 200 {
			t.Fatal("kube-controller-manager never gave one")
		}
	}
	c.event(last, api.EventOtherAllocatorActive, "kube-controller-manager", "--allocate-node-cidrs=false")
	c.metric(url, "fairlead_nodeipam_stopped 1")
	c.condition("10.74.0.0-16", api.RangeReady, api.ReasonOtherAllocatorActive)
	kcm.Stop()
	waits := c.node("waits")
	// Each of these is reported in a pass that already knew the Node. The second pass starts after the end of the
	// first.
	for i, outside := range []string{"10.98.0.0/24", "10.99.0.0/24"} {
		c.event(c.node(fmt.Sprint("outside", i), outside), api.EventInvalidPodCIDR, outside)
	}
	if got := c.podCIDRs(waits.Name); got != "" {
		t.Errorf("got %s from an allocator that is not alone", got)
	}
	stop()
	_, stop = c.stoppable(ipam("10.74.0.0/16"))
	defer stop()
	c.waits(func() string {
		if c.podCIDRs("waits") == "" {
			return "no podCIDR after a restart"
		}
		return ""
	})
}

// Another allocator that is configured to assign podCIDRs is reported before it assigns any. Once it is disabled, Nodes
// get their podCIDRs.
func TestKubeOtherAllocatorIsConfigured(t *testing.T) {
	c := newCluster(t)
	ctx, cancel := context.WithCancel(t.Context())
	_, done := c.startIn(ctx, ipam("10.75.0.0/16"), func(context.Context) (string, error) { return "another", nil })
	c.node("n")
	c.condition("10.75.0.0-16", api.RangeReady, api.ReasonOtherAllocatorActive)
	c.has("n", "")
	cancel()
	must(t, <-done)
	_, stop := c.stoppable(ipam("10.75.0.0/16"))
	defer stop()
	c.has("n", "10.75.0.0/24")
	c.condition("10.75.0.0-16", api.RangeReady, api.ReasonAvailable)
}

// Three controllers without leader election, each stopped and started at random, assign podCIDRs to Nodes that are
// created and deleted: none twice, and in the end each Node has one.
func TestKubeNoPodCIDRTwice(t *testing.T) {
	c := newCluster(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var running sync.WaitGroup
	for i := range uint64(3) {
		running.Go(func() {
			random := rand.New(rand.NewPCG(seed, i))
			for ctx.Err() == nil {
				one, end := context.WithTimeout(ctx, time.Duration(1000+random.IntN(3000))*time.Millisecond)
				c.leaderless(one, ipam("10.76.0.0/16", "fd00:76::/56"))
				end()
			}
		})
	}
	random := rand.New(rand.NewPCG(seed, 99))
	alive := map[string]bool{"first": true}
	c.node("first")
	c.waits(func() string { return c.noneTwice() }) // they are running
	for range 60 {
		name := fmt.Sprint("n", random.Uint64()) // a new name may sort before a known one
		c.node(name)
		alive[name] = true
		if random.IntN(4) == 0 {
			for gone := range alive { // any
				c.deleteNode(t.Context(), gone)
				delete(alive, gone)
				break
			}
		}
	}
	c.waits(func() string { return c.noneTwice() })
	cancel()
	running.Wait()
	// A controller that runs undisturbed cleans up the rest.
	_, stop := c.stoppable(ipam("10.76.0.0/16", "fd00:76::/56"))
	defer stop()
	c.waits(func() string {
		if got := len(c.claims()); got != 2*len(alive) {
			return fmt.Sprintf("%d claims, and %d Nodes", got, len(alive))
		}
		return ""
	})
}

// noneTwice fails the test if two Nodes have the same podCIDR. It returns the Nodes that have none.
func (c *cluster) noneTwice() (missing string) {
	c.t.Helper()
	list, err := c.s.Admin().CoreV1().Nodes().List(c.t.Context(), metav1.ListOptions{})
	must(c.t, err)
	has := map[string]string{}
	for _, n := range list.Items {
		if len(n.Spec.PodCIDRs) == 0 {
			missing += " " + n.Name
		}
		for _, p := range n.Spec.PodCIDRs {
			if has[p] != "" {
				c.t.Fatalf("%s and %s have podCIDR %s", has[p], n.Name, p)
			}
			has[p] = n.Name
		}
	}
	return missing
}

// leaderless runs NodeIPAM until ctx ends, without leader election.
func (c *cluster) leaderless(ctx context.Context, cfg api.NodeIPAM) {
	n, follow := c.nodeIPAM(cfg)
	var running sync.WaitGroup
	running.Go(func() { follow(ctx) })
	n.run(ctx)
	running.Wait()
}

// nodeIPAM is one that makes no pass by itself.
func (c *cluster) nodeIPAM(cfg api.NodeIPAM) (n *nodeIPAM, follow func(context.Context)) {
	client := c.client(c.token)
	o := c.options(client)
	o.Config.NodeIPAM = cfg
	w := newWorld(o)
	n = newNodeIPAM(o, w, &record.FakeRecorder{}, newMetrics("test"))
	n.begin()
	return n, func(ctx context.Context) {
		var running sync.WaitGroup
		running.Go(func() { w.follow(ctx) })
		running.Go(func() { n.follow(ctx) })
		running.Wait()
	}
}

// A suspended controller resumes and executes its plan, although another one was active meanwhile. What that one has
// assigned is not assigned again.
func TestKubeSuspendedControllerAssignsNothingTwice(t *testing.T) {
	c := newCluster(t)
	a, b := c.node("a"), c.node("b")
	block := netip.MustParsePrefix("10.78.0.0/24")
	sleeper, _ := c.nodeIPAM(ipam("10.78.0.0/16"))
	waker, _ := c.nodeIPAM(ipam("10.78.0.0/16"))
	// The suspended one has not seen a, and the active one dies before it gets to b.
	plan := func(n *corev1.Node) nodecidr.Assignment {
		p, err := nodecidr.Make(nodecidr.Facts{Ranges: sleeper.cutFrom(),
			Nodes: []nodecidr.Node{{Name: n.Name, UID: string(n.UID)}}})
		must(t, err)
		if len(p.Assignments) != 1 || p.Assignments[0].PodCIDRs[0] != block {
			t.Fatalf("%+v: the plans must be at odds", p)
		}
		return p.Assignments[0]
	}
	planned := plan(b)
	must(t, waker.assign(t.Context(), plan(a)))
	if err := sleeper.assign(t.Context(), planned); !apierrors.IsAlreadyExists(err) {
		t.Errorf("got %v, want that the claim is there", err)
	}
	c.has("a", block.String())
	c.has("b", "")

	// One that was suspended between claim and Node fails as well: for a Node that has podCIDRs, and for another of the
	// same name.
	planned.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.78.9.0/24")}
	late := planned
	late.Node, late.UID = a.Name, string(a.UID)
	if err := sleeper.assign(t.Context(), late); err == nil {
		t.Error("a Node got other podCIDRs than it had")
	}
	c.deleteNode(t.Context(), "b")
	c.node("b")
	planned.Claimed = planned.PodCIDRs
	if err := sleeper.assign(t.Context(), planned); err == nil {
		t.Error("a Node got what another of its name was to have")
	}
	c.has("a", block.String())
	c.has("b", "")
}

// One of two is the leader. When it is killed, the other one takes over.
func TestKubeLeaderIsSucceeded(t *testing.T) {
	c := newCluster(t)
	first, stop := c.stoppable(ipam("10.77.0.0/16"))
	c.node("n1")
	c.has("n1", "10.77.0.0/24")
	second, stopSecond := c.stoppable(ipam("10.77.0.0/16"))
	defer stopSecond()
	c.node("n2")
	c.has("n2", "10.77.1.0/24")
	c.metric(first, "fairlead_nodes_assigned_podcidrs_total 2")
	c.metric(second, "fairlead_nodes_assigned_podcidrs_total 0")
	c.metric(first, "fairlead_nodes_without_podcidr 0")
	if text := served(t, second); strings.Contains(text, "fairlead_nodes_without_podcidr") {
		t.Errorf("a controller on standby says how the cluster is:\n%s", text)
	}
	stop()
	c.node("n3")
	c.has("n3", "10.77.2.0/24")
	c.metric(second, "fairlead_nodes_assigned_podcidrs_total 1")
}

// A leader that loses the Lease no longer serves the cluster's metrics, which would soon be outdated.
func TestKubeLostLease(t *testing.T) {
	c := newCluster(t)
	c.lease = 2 * time.Second
	url, stop := c.stoppable(ipam("10.79.0.0/24"))
	defer stop()
	c.node("n1")
	c.node("n2")
	c.metric(url, "fairlead_nodes_without_podcidr 1")
	leases := c.s.Admin().CoordinationV1().Leases("kube-system")
	c.waits(func() string { // another one acquires it, and keeps it
		text, now := served(t, url), time.Now().UTC().Format(metav1.RFC3339Micro)
		if !strings.Contains(text, "fairlead_nodes_without_podcidr") && strings.Contains(text, "fairlead_build_info") {
			return ""
		}
		_, err := leases.Patch(t.Context(), leaseName, types.MergePatchType,
			[]byte(`{"spec": {"holderIdentity": "another", "leaseDurationSeconds": 2, "renewTime": "`+now+`"}}`), metav1.PatchOptions{})
		must(t, err)
		return "it has lost the Lease, and serves\n" + text
	})
	c.metric(url, "fairlead_nodes_without_podcidr 1") // the other one has ended
}

// served are the metrics of the controller at url.
func served(t *testing.T, url string) string {
	t.Helper()
	answer, err := http.Get(url + "/metrics")
	must(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	must(t, err)
	return string(text)
}

// A podCIDR that is set manually counts as in use. It does not indicate another allocator.
func TestKubePodCIDRByHand(t *testing.T) {
	c := newCluster(t)
	url, stop := c.stoppable(ipam("10.73.0.0/16"))
	defer stop()
	c.node("n1")
	c.has("n1", "10.73.0.0/24")
	file := filepath.Join(t.TempDir(), "node.yaml")
	for verb, podCIDR := range map[string]string{"create": "10.73.1.0/24", "apply": "10.73.2.0/24"} {
		must(t, os.WriteFile(file, []byte("apiVersion: v1\nkind: Node\nmetadata: {name: "+verb+"}\nspec: {podCIDR: "+podCIDR+
			", podCIDRs: ["+podCIDR+"]}\n"), 0o600))
		must(t, c.s.Kubectl(t.Context(), verb, "-f", file))
		t.Cleanup(func() { c.deleteNode(context.Background(), verb) })
	}
	c.node("n2")
	c.has("n2", "10.73.3.0/24")
	c.metric(url, "fairlead_nodeipam_stopped 0")
}

// A new leader reads the podCIDRs of all Nodes, however many there are, in several pages.
func TestKubeAllPodCIDRsAreRead(t *testing.T) {
	const many = 2*nodesAtOnce + 1
	c := newCluster(t)
	want := map[string]string{}
	for i := range many {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node", i)}}
		if i%2 == 0 {
			n.Spec.PodCIDR = fmt.Sprintf("10.78.%d.0/24", i)
			n.Spec.PodCIDRs = []string{n.Spec.PodCIDR}
			want[n.Name] = n.Spec.PodCIDR
		}
		_, err := c.s.Admin().CoreV1().Nodes().Create(t.Context(), n, metav1.CreateOptions{})
		must(t, err)
	}
	leader, _ := c.nodeIPAM(ipam("10.78.0.0/16"))
	have, err := leader.assignedNow(t.Context())
	must(t, err)
	got := map[string]string{}
	for name, h := range have {
		got[name] = strings.Join(h.podCIDRs, " ")
	}
	if !maps.Equal(got, want) {
		t.Errorf("%d Nodes have podCIDRs, want %d: %v", len(got), len(want), got)
	}
}
