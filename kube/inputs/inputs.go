// Package inputs reads the inputs of the node's agent: Nodes, Pods, Namespaces, IPPools, NetworkPolicies, Services and
// EndpointSlices, from the Kubernetes API or from a directory of manifests. It converts them to small values and
// reports when they change; it makes no decisions. An object that cannot be read keeps its last good value: invalid
// input changes nothing.
//
// It owns one file on the node, LastKnownPath: the API server's last known objects, for an agent that starts while the
// server is unreachable. Services are not in it: until they are read, Open vSwitch keeps the flows that it has for
// them.
package inputs

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/kube/feed"
	"github.com/fairlead-cni/fairlead/policy"
)

// Source provides the cluster's objects: from the Kubernetes API, or from a directory of manifests.
type Source interface {
	// Run keeps the source up to date until ctx ends. It returns early only if it can never work, with the reason.
	Run(ctx context.Context) error
	// Snapshot returns the objects as last read. The value is shared: do not modify it.
	Snapshot() *Snapshot
	// Pod returns a pod and its namespace; the zero value if there is none. If the snapshot does not have the pod, or
	// has one of another uid, the API server is read: the runtime may learn of a new Pod before the agent does. An
	// empty uid matches any pod. The error says why the API server could not be read.
	Pod(ctx context.Context, namespace, name, uid string) (Pod, Namespace, error)
	// Pool returns the IPPool of that name, and whether there is one. If the snapshot does not have it, the API server
	// is read. The error says why it could not be.
	Pool(ctx context.Context, name string) (p api.IPPool, found bool, err error)
	// Above returns the controller of an object that is itself one; the zero value if it has none, or if that is
	// unknown. The error says why the API server could not be read.
	Above(ctx context.Context, namespace string, c Controller) (Controller, error)
	// FirstOrdinal returns the first ordinal of a StatefulSet's pods, spec.ordinals.start. The error says why the API
	// server could not be read.
	FirstOrdinal(ctx context.Context, namespace, name string) (int, error)
	// Changed receives after changes of what the node depends on: Nodes, IPPools (except their status), ServiceCIDRs,
	// Problems, Trouble. Changes in quick succession are merged.
	Changed() <-chan struct{}
	// Services returns the Services, whose changes are reported one by one: there may be tens of thousands, and most
	// changes concern one of them.
	Services() *Services
	// PolicyObjects returns what policies depend on, whose changes are reported one by one.
	PolicyObjects() *feed.Objects
	// String names the source for messages: "the manifests in /etc/…".
	String() string
}

// Snapshot is all objects at one moment.
type Snapshot struct {
	Nodes      map[string]Node
	Pods       map[string]Pod       // by namespace/name
	Namespaces map[string]Namespace // by name
	// IPPools are by name, valid or not; of their status only FreeMap and Usage. Nil if none are read: without
	// bridging mode, or before the API server has reported them.
	IPPools map[string]api.IPPool
	// NetworkPolicies are by what NetworkPolicy.String returns.
	NetworkPolicies map[string]NetworkPolicy
	// ServiceCIDRs are the ranges of the cluster's ServiceCIDR objects, in order; none if the API server has no such
	// resource.
	ServiceCIDRs []netip.Prefix
	// Problems are messages about rejected input, one per file or object; the previous value is still in the snapshot.
	Problems []string
	// Unread is true until Nodes have been read: a missing Node means nothing then.
	Unread bool
	// Kept is true while the Nodes are what the source reported before a restart, and it has not responded since: an
	// existing one may be missing.
	Kept bool
	// Trouble says why the snapshot may be stale; nil if it is not. Away: nothing at all can be read.
	Trouble error
	Away    bool
	// Outages is how often Trouble has begun. Replaced is when the source was last found to have another history, as that
	// of a restored backup; zero for never. A step of the clock does not change how long ago that is. After either, other
	// objects may be missing from the snapshot than before.
	Outages  int
	Replaced time.Time

	services       map[string]*Service       // in a directory; elsewhere they are in Services alone
	endpointSlices map[string]*EndpointSlice // likewise
}

// Node is what Fairlead needs of a Kubernetes Node.
type Node struct {
	Name string
	// PodCIDRs are spec.podCIDRs, or spec.podCIDR alone. At most one of each
	// family; empty when none is assigned.
	PodCIDRs []netip.Prefix
	// Addresses are the InternalIPs of status.addresses, in their order.
	Addresses []netip.Addr
	// TunnelAddresses are where other nodes send tunnel packets to, from the annotation
	// node.antrea.io/transport-addresses; without it Addresses.
	TunnelAddresses []netip.Addr
	// Created is metadata.creationTimestamp; zero when the manifest has none.
	Created time.Time
	// Zone is the label topology.kubernetes.io/zone; empty without it.
	Zone string
	// Runtime is status.nodeInfo.containerRuntimeVersion, "containerd://2.1.4"; empty if it is unknown.
	Runtime string
	// NotReady: the condition Ready exists, and is not True.
	NotReady bool
	// NoAgent says, according to the Node, why no agent of Fairlead runs there; empty: one may.
	NoAgent string

	policy policy.Node // what policies see of it, if these are read
}

// TunnelAddr returns the first tunnel address of a family.
func (n Node) TunnelAddr(ipv4 bool) (addr netip.Addr, ok bool) {
	i := slices.IndexFunc(n.TunnelAddresses, func(a netip.Addr) bool { return a.Is4() == ipv4 })
	if i < 0 {
		return netip.Addr{}, false
	}
	return n.TunnelAddresses[i], true
}

// Pod is what Fairlead needs of a Kubernetes Pod.
type Pod struct {
	Namespace, Name, UID string
	NodeName             string
	Annotations          map[string]string
	// Controller is the object whose controller created it, zero for none, and Index the label
	// apps.kubernetes.io/pod-index.
	Controller Controller
	Index      string

	policy *policy.Pod // in a directory
}

// Controller is the object whose controller has created another: the ownerReference with controller: true.
type Controller struct{ APIVersion, Kind, Name, UID string }

// is reports whether p is the pod of that uid. Either may be unknown: a manifest need not have one.
func (p Pod) is(uid string) bool { return p.UID == uid || p.UID == "" || uid == "" }

// NetworkPolicy is a policy in the cluster.
type NetworkPolicy struct {
	APIVersion, Kind     string
	Namespace, Name, UID string

	policy *policy.Policy // in a directory
}

// Enforceable reports whether p is of a kind and version that networkPolicies: enforce enforces.
func (p NetworkPolicy) Enforceable() bool {
	return p.APIVersion == policies.GroupVersion().String() && p.Kind == feed.NetworkPolicy ||
		p.APIVersion == clusterPolicies.GroupVersion().String() && p.Kind == feed.ClusterNetworkPolicy
}

// String returns "NetworkPolicy namespace/name", for API groups other than Kubernetes' own "ClusterNetworkPolicy.group
// name".
func (p NetworkPolicy) String() string {
	kind, name := p.Kind, p.Name
	if group, _, _ := strings.Cut(p.APIVersion, "/"); group != "networking.k8s.io" {
		kind += "." + group
	}
	if p.Namespace != "" {
		name = p.Namespace + "/" + name
	}
	return kind + " " + name
}

// Namespace is what Fairlead needs of a Kubernetes Namespace.
type Namespace struct {
	Name        string
	Annotations map[string]string

	policy policy.Namespace // what policies see of it, if these are read
}
