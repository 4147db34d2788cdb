package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/controller/evidence"
	"github.com/fairlead-cni/fairlead/ipam/blocks"
	"github.com/fairlead-cni/fairlead/ipam/nodecidr"
)

// nodeIPAM assigns podCIDRs to Nodes: it claims them, writes them to the Node, and removes stale claims. See package
// nodecidr for why no podCIDR is assigned twice.
type nodeIPAM struct {
	cfg              api.NodeIPAM
	client           dynamic.Interface
	vacancies        evidence.Vacancies
	world            *world
	news             <-chan struct{}
	claims, ranges   cache.Store
	claimsFeed, feed cache.Controller
	events           record.EventRecorder
	metrics          *metrics
	every            api.ControllerIntervals
	log              logr.Logger
	// otherAllocator returns which other component assigns podCIDRs; nil: no check.
	otherAllocator func(context.Context) (string, error)

	*term
}

// term is what is known since this controller became the leader.
type term struct {
	// mu guards assigned and last: several Nodes are assigned podCIDRs concurrently.
	mu sync.Mutex
	// assigned are podCIDRs of Nodes that the cache may not have yet, by UID.
	assigned map[types.UID][]netip.Prefix
	// bridged are the addresses of bridged pods, by pool.
	bridged cached[map[string][]netip.Prefix]
	// last is what was assigned last, by range.
	last map[blocks.Range]netip.Prefix
	// ours are Nodes for whose podCIDRs the allocator is known.
	ours map[types.UID]bool
	// other is the other allocator of podCIDRs. While there is one, none are assigned.
	other string
	// seen: other was observed assigning one, and is not only configured to.
	seen bool
	// reported is when a message was last reported, by the Node's UID, its reason and cause.
	reported map[string]time.Time
	// eventsWritten is how many Events were written in this pass.
	eventsWritten int
}

// atOnce is how many Nodes are assigned podCIDRs concurrently.
const atOnce = 16

func newNodeIPAM(o Options, w *world, events record.EventRecorder, m *metrics) *nodeIPAM {
	n := &nodeIPAM{cfg: o.Config.NodeIPAM, client: o.Client, world: w, news: w.subscribe(), events: events, metrics: m,
		vacancies: evidence.Vacancies{Client: o.Kubernetes, Grace: o.Config.Reclaim.GracePeriod},
		every:     o.Intervals, log: o.Log.WithName("nodeipam"), otherAllocator: o.OtherAllocator}
	n.claims, n.claimsFeed = feed(w, api.ClaimResource, func(c *api.PodCIDRClaim) *api.PodCIDRClaim { return c })
	n.ranges, n.feed = feed(w, api.RangeResource, func(r *api.PodCIDRRange) *api.PodCIDRRange { return r })
	return n
}

// follow watches the API server until ctx ends.
func (n *nodeIPAM) follow(ctx context.Context) {
	var running sync.WaitGroup
	for _, f := range []cache.Controller{n.claimsFeed, n.feed} {
		running.Go(func() { f.RunWithContext(ctx) })
	}
	running.Wait()
}

func (n *nodeIPAM) synced() bool {
	return n.world.synced() && n.claimsFeed.HasSynced() && n.feed.HasSynced()
}

// run runs passes until ctx ends.
func (n *nodeIPAM) run(ctx context.Context) {
	n.begin()
	for !n.caughtUp(ctx) {
		if !pause(ctx, n.every.Pass, nil) {
			return
		}
	}
	var checked time.Time
	for {
		if time.Since(checked) > n.every.OtherAllocator {
			n.checkAllocators(ctx)
			checked = time.Now()
		}
		n.pass(ctx)
		if !pause(ctx, n.every.Pass, nil) || !pause(ctx, n.every.PassAtLeast-n.every.Pass, n.news) {
			return
		}
	}
}

// begin drops what was known in an earlier term as leader, except for another allocator that was seen to assign: what
// it has assigned looks like this controller's own from then on.
func (n *nodeIPAM) begin() {
	n.vacancies.Reset()
	before := n.term
	n.term = &term{assigned: map[types.UID][]netip.Prefix{}, last: map[blocks.Range]netip.Prefix{},
		ours: map[types.UID]bool{}, reported: map[string]time.Time{}}
	if before != nil && before.seen {
		n.other, n.seen = before.other, true
	}
}

// catchUp bounds how long to wait for the cache before the API server is read again.
const catchUp = 5 * time.Second

// caughtUp waits until the cache has every podCIDR that the API server has: its first content may be older, and a
// podCIDR that is not known yet could be assigned again.
func (n *nodeIPAM) caughtUp(ctx context.Context) bool {
	if !n.synced() {
		return false
	}
	missing, err := n.assignedNow(ctx)
	if err != nil {
		if ctx.Err() == nil {
			n.log.Error(err, "cannot read Nodes; podCIDRs are not assigned yet")
		}
		return false
	}
	for _, now := range missing {
		n.ours[now.uid] = true
	}
	for start := time.Now(); len(missing) > 0 && time.Since(start) < catchUp; {
		maps.DeleteFunc(missing, func(name string, now assignedNode) bool {
			obj, _, _ := n.world.nodes.GetByKey(name)
			known, ok := obj.(*corev1.Node)
			return ok && (known.UID != now.uid || slices.Equal(known.Spec.PodCIDRs, now.podCIDRs))
		})
		if len(missing) > 0 && !pause(ctx, 20*time.Millisecond, nil) {
			return false
		}
	}
	return len(missing) == 0
}

// assignedNode is a Node that has podCIDRs.
type assignedNode struct {
	uid      types.UID
	podCIDRs []string
}

// nodesAtOnce is how many Nodes one list reads: decoding each takes some 100 KiB.
const nodesAtOnce = 100

// assignedNow reads from the API server which Nodes have podCIDRs now, by name. All pages of the list are of one
// resource version.
func (n *nodeIPAM) assignedNow(ctx context.Context) (map[string]assignedNode, error) {
	have, options := map[string]assignedNode{}, metav1.ListOptions{Limit: nodesAtOnce}
	for {
		list, err := n.client.Resource(nodes).List(ctx, options)
		if err != nil {
			return nil, err
		}
		for _, u := range list.Items {
			podCIDRs, _, err := unstructured.NestedStringSlice(u.Object, "spec", "podCIDRs")
			if err != nil {
				return nil, fmt.Errorf("Node %s: %w", u.GetName(), err)
			}
			if len(podCIDRs) > 0 {
				have[u.GetName()] = assignedNode{u.GetUID(), podCIDRs}
			}
		}
		if options.Continue = list.GetContinue(); options.Continue == "" {
			return have, nil
		}
	}
}

// checkAllocators finds out whether another allocator is active.
func (n *nodeIPAM) checkAllocators(ctx context.Context) {
	if n.otherAllocator == nil || n.seen {
		return
	}
	allocator, err := n.otherAllocator(ctx)
	if err != nil {
		n.log.V(1).Info("cannot determine whether kube-controller-manager assigns podCIDRs", "reason", err.Error())
		return
	}
	if allocator != n.other && allocator != "" {
		n.log.Error(errors.New(stopped(allocator)), "podCIDR assignment is stopped")
	} else if allocator != n.other {
		n.log.Info("no other allocator is active any more, podCIDR assignment resumes", "allocator", n.other)
	}
	n.other = allocator
}

// stopped is the message that there are two allocators, and what to do.
func stopped(who string) string {
	return fmt.Sprintf("%s assigns podCIDRs to Nodes, too. Two allocators could assign the same to two Nodes, so "+
		"fairlead-controller assigns none. Run kube-controller-manager with --allocate-node-cidrs=false, or set nodeIPAM.enableNodeIPAM to false; "+
		"then restart fairlead-controller", who)
}

// pass makes one pass. What failed is retried by the next one.
func (n *nodeIPAM) pass(ctx context.Context) {
	n.eventsWritten = 0
	n.watchOthers(ctx)
	plan, err := nodecidr.Make(n.facts())
	if err != nil { // the config has been validated
		n.log.Error(err, "podCIDR assignment is stopped: invalid nodeIPAM.clusterCIDRs")
		return
	}
	n.metrics.nodeIPAM(plan, n.other != "")
	n.report(plan)
	for _, u := range plan.Usage {
		if err := n.writeRange(ctx, u); err != nil && ctx.Err() == nil && !passing(err) {
			n.log.Error(err, "writing PodCIDRRange failed, will retry", "range", u.Range.String())
		}
	}
	n.removeRanges(ctx)
	if n.other == "" {
		n.assignAll(ctx, plan.Assignments)
	}
	n.releaseStale(ctx, plan.Release)
}

func (n *nodeIPAM) assignAll(ctx context.Context, assignments []nodecidr.Assignment) {
	var running sync.WaitGroup
	free := make(chan struct{}, atOnce)
	for _, g := range assignments {
		free <- struct{}{}
		running.Go(func() {
			defer func() { <-free }()
			err := n.assign(ctx, g)
			if err != nil && ctx.Err() == nil && !passing(err) && !apierrors.IsAlreadyExists(err) {
				n.log.Error(err, "assigning podCIDRs failed, will retry", "node", g.Node)
			}
		})
	}
	running.Wait()
}

// assign claims podCIDRs that are not claimed yet, and writes all to the Node. The API server accepts podCIDRs once for
// each Node, and only for the Node with this UID.
func (n *nodeIPAM) assign(ctx context.Context, g nodecidr.Assignment) error {
	var texts []string
	for _, p := range g.PodCIDRs {
		texts = append(texts, p.String())
		if slices.Contains(g.Claimed, p) {
			continue
		}
		if err := n.claim(ctx, p, g); err != nil {
			return err
		}
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": g.UID},
		"spec": map[string]any{"podCIDR": texts[0], "podCIDRs": texts}})
	if err != nil {
		return err
	}
	_, err = n.client.Resource(nodes).Patch(ctx, g.Node, types.MergePatchType, body, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("writing podCIDRs to Node %s: %w", g.Node, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.assigned[types.UID(g.UID)], n.ours[types.UID(g.UID)] = g.PodCIDRs, true
	for _, p := range g.PodCIDRs {
		for _, r := range n.cutFrom() {
			if p.Overlaps(r.Cluster) {
				n.last[r] = p
			}
		}
	}
	n.metrics.assigned.Inc()
	n.log.Info("assigned podCIDRs", "node", g.Node, "podCIDRs", texts)
	return nil
}

func (n *nodeIPAM) claim(ctx context.Context, p netip.Prefix, g nodecidr.Assignment) error {
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&api.PodCIDRClaim{
		TypeMeta:   metav1.TypeMeta{APIVersion: api.AllocationGroup + "/" + api.AllocationVersion, Kind: api.PodCIDRClaimKind},
		ObjectMeta: metav1.ObjectMeta{Name: nodecidr.Name(p)},
		Spec:       api.PodCIDRClaimSpec{PodCIDR: p.String(), Node: g.Node, NodeUID: g.UID}})
	if err != nil {
		return err
	}
	u := &unstructured.Unstructured{Object: object}
	if _, err = n.client.Resource(api.ClaimResource).Create(ctx, u, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("claiming podCIDR %s for Node %s: %w", p, g.Node, err)
	}
	return nil
}

// facts are the inputs from the cache and from this controller.
func (n *nodeIPAM) facts() nodecidr.Facts {
	f := nodecidr.Facts{Ranges: n.cutFrom(), Services: slices.Clone(n.world.serviceCIDRs()),
		Pools: n.bridged.of(n.world, n.world.bridged)}
	for _, s := range []netip.Prefix{n.cfg.ServiceCIDR, n.cfg.ServiceCIDRv6} {
		if s.IsValid() {
			f.Services = append(f.Services, s)
		}
	}
	for _, c := range listOf[api.PodCIDRClaim](n.claims) {
		if p, err := netip.ParsePrefix(c.Spec.PodCIDR); err == nil && nodecidr.Name(p) == c.Name {
			f.Claims = append(f.Claims, nodecidr.Claim{PodCIDR: p, Node: c.Spec.Node, UID: c.Spec.NodeUID,
				Created: c.CreationTimestamp.Time})
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	f.Last = slices.Collect(maps.Values(n.last))
	for _, node := range listOf[corev1.Node](n.world.nodes) {
		f.Nodes = append(f.Nodes, n.node(node))
	}
	return f
}

// node is the nodecidr.Node of a Node, with its recent assignment.
func (n *nodeIPAM) node(node *corev1.Node) nodecidr.Node {
	out := nodecidr.Node{Name: node.Name, UID: string(node.UID), PodCIDRs: podCIDRs(node), Addresses: addresses(node),
		Created: node.CreationTimestamp.Time, Leaving: node.DeletionTimestamp != nil}
	if len(out.PodCIDRs) > 0 {
		delete(n.assigned, node.UID)
	} else {
		out.PodCIDRs = n.assigned[node.UID]
	}
	return out
}

func podCIDRs(node *corev1.Node) (out []netip.Prefix) {
	for _, s := range node.Spec.PodCIDRs {
		if p, err := netip.ParsePrefix(s); err == nil {
			out = append(out, p.Masked())
		}
	}
	return out
}

// cutFrom are the ranges of the config.
func (n *nodeIPAM) cutFrom() (out []blocks.Range) {
	for _, c := range n.cfg.ClusterCIDRs {
		mask := n.cfg.MaskSizeIPv4
		if c.Addr().Is6() {
			mask = n.cfg.MaskSizeIPv6
		}
		out = append(out, blocks.Range{Cluster: c, Mask: mask})
	}
	return out
}

// watchOthers looks for Nodes that got podCIDRs from another allocator.
func (n *nodeIPAM) watchOthers(ctx context.Context) {
	for _, node := range listOf[corev1.Node](n.world.nodes) {
		if len(node.Spec.PodCIDRs) == 0 || n.ours[node.UID] {
			continue
		}
		writer, err := n.podCIDRWriter(ctx, node)
		if err != nil {
			if ctx.Err() == nil {
				n.log.Error(err, "cannot determine yet who assigned the podCIDRs of a Node", "node", node.Name)
			}
			continue
		}
		n.ours[node.UID] = true
		switch {
		case isKubectl(writer):
			n.log.Info("a podCIDR was set manually: it counts as in use, and assignment continues", "node", node.Name,
				"podCIDRs", node.Spec.PodCIDRs)
		case writer != "":
			n.other, n.seen = writer, true
			why := fmt.Sprintf("%s has assigned podCIDR %s to Node %s. %s", writer, node.Spec.PodCIDRs[0], node.Name, stopped(writer))
			n.log.Error(errors.New(why), "podCIDR assignment is stopped")
			n.warn(node.Name, node.UID, api.EventOtherAllocatorActive, why, why)
		}
	}
}

// isKubectl reports whether a component that wrote podCIDRs is kubectl, by the names that its commands give themselves:
// a manual change concerns one Node, and no other Node will get podCIDRs that way.
func isKubectl(manager string) bool {
	return manager == "kubectl" || strings.HasPrefix(manager, "kubectl-")
}

// podCIDRWriter is the component that has written the podCIDRs of a Node, by its managed fields; empty if it was
// fairlead-controller, which has claimed them before.
func (n *nodeIPAM) podCIDRWriter(ctx context.Context, node *corev1.Node) (string, error) {
	for _, p := range podCIDRs(node) {
		u, err := n.client.Resource(api.ClaimResource).Get(ctx, nodecidr.Name(p), metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return "", err
		}
		if err == nil {
			if uid, _, _ := unstructured.NestedString(u.Object, "spec", "nodeUID"); uid == string(node.UID) {
				return "", nil
			}
		}
	}
	u, err := n.client.Resource(nodes).Get(ctx, node.Name, metav1.GetOptions{})
	if err != nil || u.GetUID() != node.UID {
		return "", err
	}
	for _, f := range u.GetManagedFields() {
		if f.FieldsV1 != nil && strings.Contains(f.FieldsV1.GetRawString(), `"f:podCIDR"`) {
			return f.Manager, nil
		}
	}
	return "an unknown client", nil
}
