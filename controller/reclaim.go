package controller

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/controller/evidence"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/ipam/reclaim"
)

// reclaimer reclaims what owners on deleted or fenced nodes hold, by the rules of package reclaim. The cache, which may
// be stale, only says which nodes to check. Each of the two checks reads the API server.
type reclaimer struct {
	cfg    api.Reclaim
	client kubernetes.Interface
	store  allocation.Store
	world  *world
	news   <-chan struct{}
	events record.EventRecorder
	// clock is the time since the process started, independent of changes to the machine's clock.
	clock   func() time.Duration
	metrics *reclaimMetrics
	every   api.ControllerIntervals
	log     logr.Logger

	// The rest is known since this controller became the leader.

	// lost are nodes that may be lost, by name.
	lost map[string]*lostNode
	// reported is when a message about a node was last logged.
	reported map[string]time.Duration
}

// lostNode is the state of one such node.
type lostNode struct {
	tracker reclaim.Tracker
	readAt  time.Duration // when the API server was last read for it, 0 for never
	kept    map[string]int
}

// Requests to the API server are bounded: nodes checked in a pass, and addresses reclaimed in one.
const (
	nodesInPass = 20
	freesInPass = 50
)

func newReclaimer(o Options, w *world, events record.EventRecorder, m *metrics) *reclaimer {
	began := time.Now()
	return &reclaimer{cfg: o.Config.Reclaim, every: o.Intervals,
		client: o.Kubernetes, store: allocation.NewKubernetes(o.Client), world: w,
		news: w.subscribe(), events: events, clock: func() time.Duration { return time.Since(began) },
		metrics: newReclaimMetrics(m), log: o.Log.WithName("reclaim")}
}

// run runs passes until ctx ends.
func (r *reclaimer) run(ctx context.Context) {
	r.begin()
	for {
		if r.world.synced() {
			r.pass(ctx)
		}
		if !pause(ctx, r.every.Pass, nil) || !pause(ctx, min(r.every.PassAtLeast, r.cfg.GracePeriod), r.news) {
			return
		}
	}
}

// begin drops what was known in an earlier term as leader.
func (r *reclaimer) begin() {
	r.lost, r.reported = map[string]*lostNode{}, map[string]time.Duration{}
	r.metrics.set(nil)
}

// pass checks once what may be lost.
func (r *reclaimer) pass(ctx context.Context) {
	of := map[string][]reclaim.Suspect{}
	nodes := clusterNodes(listOf[corev1.Node](r.world.nodes))
	for _, s := range reclaim.Lost(listOf[api.IPAllocation](r.world.allocations), nodes) {
		of[s.Spec.Owner.Node] = append(of[s.Spec.Owner.Node], s)
	}
	maps.DeleteFunc(r.lost, func(node string, _ *lostNode) bool { return of[node] == nil })
	for node, suspects := range of {
		if r.lost[node] == nil {
			r.lost[node] = &lostNode{kept: map[string]int{keptGrace: len(suspects)}}
		}
	}
	left := freesInPass
	for _, node := range r.inTurn() {
		if left > 0 && ctx.Err() == nil {
			left -= r.checkNode(ctx, node, of[node], left)
		}
	}
	r.metrics.set(r.lost)
}

func clusterNodes(nodes []*corev1.Node) map[string]reclaim.ClusterNode {
	out := make(map[string]reclaim.ClusterNode, len(nodes))
	for _, n := range nodes {
		out[n.Name] = evidence.Node(n)
	}
	return out
}

// inTurn are some of the lost nodes, those checked longest ago first.
func (r *reclaimer) inTurn() []string {
	names := slices.SortedFunc(maps.Keys(r.lost), func(a, b string) int {
		return cmp.Or(cmp.Compare(r.lost[a].readAt, r.lost[b].readAt), cmp.Compare(a, b))
	})
	return names[:min(len(names), nodesInPass)]
}

// Why an address is kept although its node may be lost.
const (
	keptGrace   = "grace"   // the grace period is not over, or it is not its turn
	keptPod     = "pod"     // its Pod exists
	keptNode    = "node"    // its Node is back, or is Ready
	keptUnknown = "unknown" // the API server did not answer
	keptChanged = "changed" // the allocation was changed concurrently
)

// checkNode reads about one node from the API server, and at the second check reclaims what is lost, at most the given
// number. It returns how many it reclaimed.
func (r *reclaimer) checkNode(ctx context.Context, name string, suspects []reclaim.Suspect, most int) (freed int) {
	n := r.lost[name]
	n.readAt, n.kept = max(r.clock(), 1), map[string]int{}
	now, pods, err := r.evidence(ctx, name)
	if err != nil {
		n.tracker, n.kept[keptUnknown] = reclaim.Tracker{}, len(suspects) // it may have been alive in between
		r.report(name, "cannot determine whether a node is lost, keeping its addresses", "reason", err.Error())
		return 0
	}
	var gone []reclaim.Suspect
	for _, s := range suspects {
		switch s.Why = now.Lost(); {
		case s.Why == "":
			n.kept[keptNode]++
		case reclaim.Lives(s.Spec.Owner, pods):
			n.kept[keptPod]++
			r.report(name, "keeping addresses of a lost node until their Pods are deleted", "reason", s.Why,
				"owner", s.Spec.Owner.String())
		default:
			gone = append(gone, s)
		}
	}
	due := n.tracker.Due(r.clock(), r.cfg.GracePeriod, gone)
	n.kept[keptGrace] = len(gone) - min(len(due), most)
	for _, s := range due[:min(len(due), most)] {
		if kept := r.free(ctx, s); kept != "" {
			n.kept[kept]++
			continue
		}
		r.freed(s, now)
		freed++
	}
	return freed
}

// free releases one address if its allocation has not changed since it was checked, or returns why it is kept.
func (r *reclaimer) free(ctx context.Context, s reclaim.Suspect) (kept string) {
	a, err := r.store.Get(ctx, s.Name)
	if err == nil && (a.UID != s.UID || a.ResourceVersion != s.ResourceVersion) {
		return keptChanged
	}
	if err == nil {
		err = allocation.Free(ctx, r.store, a, r.cfg.CoolingPeriod)
	}
	switch {
	case errors.Is(err, allocation.ErrConflict), errors.Is(err, allocation.ErrNotFound):
		return keptChanged
	case err != nil:
		r.report(s.Spec.Owner.Node, "reclaiming addresses of a lost node failed, will retry", "reason", err.Error())
		return keptUnknown
	}
	return ""
}

// evidence is the current state of a node and, if it may be lost, of its Pods in the API, not a cached one.
func (r *reclaimer) evidence(ctx context.Context, name string) (reclaim.ClusterNode, []reclaim.Pod, error) {
	node, err := evidence.ReadNode(ctx, r.client, name)
	if err != nil || node.Lost() == "" {
		return node, nil, err
	}
	pods, err := evidence.ReadPods(ctx, r.client, name)
	return node, pods, err
}

// freed reports that an address was reclaimed: in the log, a metric and an Event on the Pod, or on the IPPool if the
// owner was not a pod.
func (r *reclaimer) freed(s reclaim.Suspect, node reclaim.ClusterNode) {
	o := s.Spec.Owner
	r.metrics.freed(node)
	r.log.Info("reclaimed address of a lost node", "address", s.Spec.Address, "pool", s.Spec.Pool, "reason", s.Why,
		"owner", o.String(), "podUID", o.PodUID, "containerID", o.ContainerID)
	about := &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: o.Namespace, Name: o.Name, UID: types.UID(o.PodUID)}
	if o.Name == "" {
		about = &corev1.ObjectReference{APIVersion: api.PoolGroup + "/" + api.PoolVersion, Kind: api.PoolKind, Name: s.Spec.Pool}
	}
	r.events.Eventf(about, corev1.EventTypeWarning, api.EventAddressReclaimed, "address %s of IPPool %s was still allocated to "+
		"container %s on node %s, but %s: it is reclaimed", s.Spec.Address, s.Spec.Pool, o.ContainerID, o.Node, s.Why)
}

// report logs what keeps a node's addresses, rate limited.
func (r *reclaimer) report(node, message string, more ...any) {
	maps.DeleteFunc(r.reported, func(_ string, at time.Duration) bool { return r.clock()-at > rewriteAfter })
	if _, reported := r.reported[node+message]; reported {
		return
	}
	r.reported[node+message] = r.clock()
	r.log.Info(message, append([]any{"node", node}, more...)...)
}

// reclaimMetrics are the metrics of reclaiming.
type reclaimMetrics struct {
	reclaimed *prometheus.CounterVec
	kept      *prometheus.GaugeVec
}

func newReclaimMetrics(all *metrics) *reclaimMetrics {
	m := &reclaimMetrics{reclaimed: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "fairlead_addresses_reclaimed_total",
		Help: "Addresses reclaimed by this process from lost nodes, by the reason why the node counts as lost."},
		[]string{"reason"}),
		kept: newGauges("fairlead_lost_node_addresses", "Addresses still allocated to owners on lost nodes, by the reason why they are not reclaimed.",
			"reason")}
	all.registry.MustRegister(m.reclaimed)
	all.cluster.MustRegister(m.kept)
	for _, why := range []string{"deleted", "fenced"} {
		m.reclaimed.WithLabelValues(why)
	}
	m.set(nil)
	return m
}

func (m *reclaimMetrics) freed(node reclaim.ClusterNode) {
	why := "fenced"
	if node.UID == "" {
		why = "deleted"
	}
	m.reclaimed.WithLabelValues(why).Inc()
}

// set updates the metrics of lost nodes.
func (m *reclaimMetrics) set(lost map[string]*lostNode) {
	kept := map[string]int{}
	for _, n := range lost {
		for why, count := range n.kept {
			kept[why] += count
		}
	}
	for _, why := range []string{keptGrace, keptPod, keptNode, keptUnknown, keptChanged} {
		m.kept.WithLabelValues(why).Set(float64(kept[why]))
	}
}
