package inputs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/kube"
	"github.com/fairlead-cni/fairlead/kube/feed"
	"github.com/fairlead-cni/fairlead/kube/follow"
	"github.com/fairlead-cni/fairlead/kube/peers"
)

var (
	pods       = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	namespaces = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	policies   = schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"}
)

// queryTimeout bounds the read of one Pod at its ADD. The runtime retries an ADD that failed with "try again later".
const queryTimeout = 3 * time.Second

// Kubernetes is a Source that watches the API server: all Nodes, Namespaces, IPPools, NetworkPolicies, Services,
// EndpointSlices and ServiceCIDRs, and the Pods of one node. Of Pods, Namespaces and NetworkPolicies it reads metadata
// only; of the others it keeps what Fairlead needs.
//
// While the API server is unreachable, or if it has another history than before (an emptied etcd), existing state stays
// in effect until the server reports another.
type Kubernetes struct {
	// Intervals are api.DefaultIntervals unless set before Run.
	Intervals api.InputIntervals

	client *kube.Client
	node   string
	file   lastKnown
	log    logr.Logger

	kinds
	reading
	bridging bool // IPPools are read
	others   atomic.Pointer[map[string]NetworkPolicy]

	last      atomic.Pointer[Snapshot]
	contactAt atomic.Int64 // unix nanoseconds of the server's last response or event
	signals

	// Owned by the goroutine in Run.
	read    bool // all Nodes were reported by the API server
	unsaved bool // the file does not have the snapshot's objects yet
	outage
}

// kinds are the objects as last read.
type kinds struct {
	nodes      *follow.Kind[Node]
	pods       *follow.Kind[Pod]
	namespaces *follow.Kind[Namespace]
	pools      *follow.Kind[api.IPPool]
	policies   *follow.Kind[NetworkPolicy]
	ranges     *follow.Kind[[]netip.Prefix]
	services   *follow.Kind[*Service]
	slices     *follow.Kind[*EndpointSlice]
	known      *Services     // from the two above
	judged     *feed.Objects // what policies depend on, except the Pods of other nodes
}

// reading is what reads the objects.
type reading struct {
	server    *follow.Server
	followers []*follow.Follower
	peers     *peers.Peers // nil: policies are not read
}

// signals are the changes since the last snapshot.
type signals struct {
	dirty   chan struct{}
	wake    atomic.Bool // the change is one that Changed reports
	objects atomic.Bool // objects have changed
	changed chan struct{}
}

// outage is why the API server cannot be read.
type outage struct {
	fromOld string // when the file that replaces the server's objects was written
	trouble error
	reason  string // of the trouble
	since   time.Time
	begun   int                       // troubles until now
	away    bool                      // nothing can be read
	another atomic.Pointer[time.Time] // when another history was last found
}

// NewKubernetes returns a Source for the named node. It sends no request: Run does. Until the API server has reported
// all Nodes, the snapshot is Unread, or has the objects of file. IPPools are read only with bridging: otherwise neither
// their CRD nor the permission to read them need exist.
func NewKubernetes(client *kube.Client, node, file string, bridging bool, log logr.Logger) *Kubernetes {
	k := &Kubernetes{Intervals: api.DefaultIntervals().Inputs,
		client: client, node: node, bridging: bridging, file: lastKnown{path: file, node: node}, log: log,
		kinds:   kinds{known: newServices(), judged: feed.New()},
		signals: signals{dirty: make(chan struct{}, 1), changed: make(chan struct{}, 1)}}
	k.server = &follow.Server{Metadata: client.Metadata, Reported: k.troubleChanged,
		Heard: func() { k.contactAt.Store(time.Now().UnixNano()) }, Replaced: func() { k.another.Store(new(time.Now())) }}
	k.last.Store(&Snapshot{Unread: true})
	k.nodes = follow.NewKind(k.nodesChanged, func(o runtime.Object) (Node, error) {
		return nodeFrom(o.(*corev1.Node))
	})
	k.pods = follow.NewKind(k.objectsChanged, func(o runtime.Object) (Pod, error) {
		return podFrom(o.(*metav1.PartialObjectMetadata).ObjectMeta, node)
	})
	k.namespaces = follow.NewKind(k.objectsChanged, func(o runtime.Object) (Namespace, error) {
		return namespaceFrom(o.(*metav1.PartialObjectMetadata).ObjectMeta)
	})
	k.policies = follow.NewKind(k.objectsChanged, func(o runtime.Object) (NetworkPolicy, error) {
		return policyFrom(networkPolicy(), o.(*metav1.PartialObjectMetadata).ObjectMeta)
	})
	k.pools = follow.NewKind(k.objectsChanged, poolFromAPI)
	k.newServiceKinds()
	k.follow(k.nodesResource(), k.nodes)
	k.follow(k.metadataOf(pods, fields.OneTermEqualSelector("spec.nodeName", node)), k.pods)
	k.follow(k.metadataOf(namespaces, fields.Everything()), k.namespaces)
	k.follow(k.metadataOf(policies, fields.Everything()), k.policies)
	if bridging {
		k.follow(k.poolsResource(), k.pools)
	}
	return k
}

func (k *Kubernetes) follow(r follow.Resource, store cache.ReflectorStore) {
	k.followers = append(k.followers, k.server.Follow(r, store))
}

func networkPolicy() metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: policies.GroupVersion().String(), Kind: "NetworkPolicy"}
}

// Snapshot implements Source.
func (k *Kubernetes) Snapshot() *Snapshot { return k.last.Load() }

// Changed implements Source.
func (k *Kubernetes) Changed() <-chan struct{} { return k.changed }

// PolicyObjects implements Source. Its Pods are those of this node and those that the policies of these can refer to.
func (k *Kubernetes) PolicyObjects() *feed.Objects {
	if k.peers == nil {
		return k.judged
	}
	return k.peers.Objects()
}

// Services implements Source.
func (k *Kubernetes) Services() *Services { return k.known }

func (k *Kubernetes) String() string { return "the Kubernetes API" }

// Run implements Source.
func (k *Kubernetes) Run(ctx context.Context) error {
	k.contactAt.Store(time.Now().UnixNano())
	var running sync.WaitGroup
	for _, f := range k.followers {
		running.Go(func() { f.Run(ctx, k.Intervals) })
	}
	if k.peers != nil {
		running.Go(func() { k.peers.Run(ctx, k.Intervals) })
	}
	running.Go(func() { k.pollOtherPolicies(ctx) })
	k.publishLoop(ctx)
	running.Wait()
	return nil
}

func (k *Kubernetes) nodesResource() follow.Resource {
	nodes := k.client.Kubernetes.CoreV1().Nodes()
	return follow.Resource{Name: "nodes", Of: &corev1.Node{},
		List: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return nodes.List(ctx, o) },
		Watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return nodes.Watch(ctx, o)
		}}
}

func (k *Kubernetes) metadataOf(r schema.GroupVersionResource, selector fields.Selector) follow.Resource {
	objects := k.client.Metadata.Resource(r)
	return follow.Resource{Name: r.Resource, Of: &metav1.PartialObjectMetadata{},
		List: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector.String()
			return objects.List(ctx, o)
		},
		Watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector.String()
			return objects.Watch(ctx, o)
		}}
}

func (k *Kubernetes) nodesChanged() {
	k.wake.Store(true)
	k.objectsChanged()
}

func (k *Kubernetes) objectsChanged() {
	k.objects.Store(true)
	k.touch()
}

func (k *Kubernetes) troubleChanged() {
	k.wake.Store(true)
	k.touch()
}

func (k *Kubernetes) touch() {
	select {
	case k.dirty <- struct{}{}:
	default:
	}
}

func (k *Kubernetes) publishLoop(ctx context.Context) {
	grace := time.NewTimer(k.Intervals.StartGrace)
	defer grace.Stop()
	save := time.NewTicker(k.Intervals.Save)
	defer save.Stop()
	for {
		select {
		case <-ctx.Done():
			k.save()
			return
		case <-save.C:
			k.save()
			continue
		case <-grace.C:
			k.takeLastKnown()
		case <-k.dirty:
			if k.read { // otherwise a caller waits for the first Nodes
				time.Sleep(quietTime) // merges changes in quick succession
			}
		}
		k.publish()
	}
}

func (k *Kubernetes) save() {
	if !k.read || !k.unsaved {
		return
	}
	if err := k.file.write(k.Snapshot()); err != nil {
		k.log.Error(err, "saving the inputs for a start without the API server failed, will retry", "path", k.file.path,
			"interval", k.Intervals.Save)
		return
	}
	k.unsaved = false
}

// takeLastKnown fills in from the file what the API server has not reported yet.
func (k *Kubernetes) takeLastKnown() {
	if _, _, read := k.nodes.All(); read {
		return
	}
	old, written, err := k.file.read()
	if err != nil {
		k.log.Info("waiting for the API server, there are no saved inputs",
			"server", k.client.Server, "path", k.file.path, "reason", err.Error())
		return
	}
	k.log.Info("API server has not answered yet, using the saved inputs",
		"server", k.client.Server, "path", k.file.path, "written", written)
	k.pods.Fill(old.Pods)
	k.namespaces.Fill(old.Namespaces)
	k.pools.Fill(old.IPPools)
	k.fillPolicies(old.NetworkPolicies)
	if k.nodes.Fill(old.Nodes) {
		k.fromOld = written.Format(time.DateTime)
		k.wake.Store(true)
	}
}

// fillPolicies uses the keys of the API server's policies.
func (k *Kubernetes) fillPolicies(old map[string]NetworkPolicy) {
	keyed := make(map[string]NetworkPolicy, len(old))
	for _, p := range old {
		if p.APIVersion == policies.GroupVersion().String() {
			keyed[p.Namespace+"/"+p.Name] = p
		}
	}
	k.policies.Fill(keyed)
}

// publish publishes the next snapshot.
func (k *Kubernetes) publish() {
	if k.objects.Swap(false) {
		k.unsaved = true
	}
	next := &Snapshot{}
	var bad [6][]string
	var read bool
	next.Nodes, bad[0], read = k.nodes.All()
	next.Pods, bad[1], _ = k.pods.All()
	next.Namespaces, bad[2], _ = k.namespaces.All()
	policies, badPolicies, _ := k.policies.All()
	bad[3] = badPolicies
	next.IPPools, bad[4] = k.knownPools()
	ranges, badRanges, _ := k.ranges.All()
	bad[5] = slices.Concat(badRanges, k.services.Refused(), k.slices.Refused())
	for _, p := range ranges {
		next.ServiceCIDRs = append(next.ServiceCIDRs, p...)
	}
	slices.SortFunc(next.ServiceCIDRs, netip.Prefix.Compare)
	next.NetworkPolicies = make(map[string]NetworkPolicy, len(policies))
	for _, p := range policies {
		next.NetworkPolicies[p.String()] = p
	}
	if others := k.others.Load(); others != nil {
		maps.Copy(next.NetworkPolicies, *others)
	}
	next.Problems = slices.Concat(bad[:]...)
	if read {
		k.fromOld = ""
	}
	next.Unread, next.Kept = !read && k.fromOld == "", k.fromOld != ""
	k.updateTrouble()
	next.Trouble, next.Away, next.Outages = k.trouble, k.away, k.begun
	if at := k.another.Load(); at != nil {
		next.Replaced = *at
	}
	before := k.last.Swap(next)
	if poolsChanged(before.IPPools, next.IPPools) {
		k.wake.Store(true)
	}
	for _, p := range next.Problems {
		if !slices.Contains(before.Problems, p) {
			k.log.Info("object rejected, its last valid content stays in effect", "problem", p)
		}
	}
	k.read = read
	if k.wake.Swap(false) {
		select {
		case k.changed <- struct{}{}:
		default:
		}
	}
}

// updateTrouble composes a message of what cannot be read, since when, and what that means. The message does not change
// as long as the reason does not.
func (k *Kubernetes) updateTrouble() {
	var names []string
	var first error
	reason := ""
	note := func(name, why string, err error) {
		if err == nil {
			return
		}
		names = append(names, name)
		if first == nil {
			first, reason = err, why
		}
	}
	for _, f := range k.followers {
		why, err := f.State()
		note(f.Name, why, err)
	}
	k.away = len(names) == len(k.followers)
	if k.peers != nil {
		why, err := k.peers.State()
		note(peers.Name, why, err)
	}
	if reason == string(metav1.StatusReasonForbidden) { // of some kinds only, perhaps
		reason += strings.Join(names, ", ")
	} else {
		names = nil
	}
	if reason += k.fromOld; first == nil || reason == k.reason {
		if first == nil {
			k.reason, k.trouble = "", nil
		}
		return
	}
	if k.trouble == nil {
		k.since = time.Now()
		k.begun++
	}
	k.reason, k.trouble = reason, k.sentence(names, first)
}

func (k *Kubernetes) sentence(names []string, err error) error {
	if errors.Is(err, follow.ErrOtherVersion) {
		return fmt.Errorf("ClusterNetworkPolicies cannot be read from the Kubernetes API server %s: %w. What is enforced stays, and a node that has just started enforces what it had saved, or keeps new pods closed, until the definition serves %s or these objects are deleted",
			k.client.Server, err, clusterPolicies.Version)
	}
	if apierrors.IsNotFound(err) { // all other kinds are built into the server
		return fmt.Errorf("the Kubernetes API server %s has no resource IPPools, and enableBridgingMode is true: install the CRDs (kubectl apply -f build/manifests/fairlead.yaml -l app.kubernetes.io/component=crds). Until then pods that ask for one get no network",
			k.client.Server)
	}
	what, known := "", "The last known state stays in effect"
	if len(names) > 0 {
		what = " (" + strings.Join(names, ", ") + ")"
	}
	if k.fromOld != "" {
		known = "The state saved at " + k.fromOld + " stays in effect"
	}
	return fmt.Errorf("the Kubernetes API server %s cannot be read%s since %s: %s. %s: pods keep their network, DEL works, ADD works for pods that the agent has seen. Other new pods wait, and changes of nodes are not seen",
		k.client.Server, what, k.since.Format(time.TimeOnly), follow.ShortError(err), known)
}

// Pod implements Source.
func (k *Kubernetes) Pod(ctx context.Context, namespace, name, uid string) (Pod, Namespace, error) {
	s := k.Snapshot()
	pod, knownPod := s.Pods[namespace+"/"+name]
	ns, knownNS := s.Namespaces[namespace]
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	if !knownPod || !pod.is(uid) {
		found, err := k.client.Metadata.Resource(pods).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			pod = Pod{} // a static pod before its mirror, or one deleted meanwhile
		case err != nil:
			return Pod{}, Namespace{}, k.unknown("Pod "+namespace+"/"+name, err)
		default:
			if pod, err = podFrom(found.ObjectMeta, k.node); err != nil {
				return Pod{}, Namespace{}, err
			}
		}
	}
	if !knownNS {
		found, err := k.client.Metadata.Resource(namespaces).Get(ctx, namespace, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return Pod{}, Namespace{}, k.unknown("Namespace "+namespace, err)
		default:
			if ns, err = namespaceFrom(found.ObjectMeta); err != nil {
				return Pod{}, Namespace{}, err
			}
		}
	}
	return pod, ns, nil
}

// LastContact is the time of the API server's last response or event.
func (k *Kubernetes) LastContact() time.Time { return time.Unix(0, k.contactAt.Load()) }

// Failures are the requests and watches that failed since the start, by resource: "nodes".
func (k *Kubernetes) Failures() map[string]int64 {
	out := map[string]int64{}
	for _, f := range k.followers {
		out[f.Name] = f.Failures()
	}
	if k.peers != nil {
		out[peers.Name] = k.peers.Failures()
	}
	return out
}

func (k *Kubernetes) unknown(what string, err error) error {
	return fmt.Errorf("the agent has not seen the %s yet, which may ask for an address of an IPPool, and asking "+
		"the API server failed: %s", what, follow.ShortError(err))
}
