// Package inputs reads what the node's agent is told: Nodes, Pods, Namespaces,
// IPPools and NetworkPolicies, from the Kubernetes API or from a directory of manifests.
// It turns them into small values and tells when they change; it decides
// nothing. A Source that can't read an object keeps the last good one: bad input
// changes nothing.
//
// On the node one file is ours, LastKnownPath: what the API server last said,
// for an agent that starts while the server is away.
package inputs

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-cni/fairlead/api"
)

// Source gives the cluster's objects. The directory of manifests is one; the
// Kubernetes API is the other.
type Source interface {
	// Run keeps the source up to date until ctx ends. It returns early only
	// when it can never work; the error says why.
	Run(ctx context.Context) error
	// Snapshot returns the objects as last read. The value is shared: do not
	// change it.
	Snapshot() *Snapshot
	// Pod returns what is known of a pod and of its namespace; the zero value
	// stands for what nobody knows. What the snapshot does not have, or has of
	// another uid, is asked for now: the runtime may hear of a new Pod before
	// the agent does. An empty uid is that of any pod. The error says why
	// nobody could be asked.
	Pod(ctx context.Context, namespace, name, uid string) (Pod, Namespace, error)
	// Pool returns the IPPool of that name, and whether there is one. What the
	// snapshot does not have is asked for now. The error says why nobody could
	// be asked.
	Pool(ctx context.Context, name string) (p api.IPPool, found bool, err error)
	// Above returns the controller of an object that is itself one; the zero value where it
	// has none, or where nobody knows. The error says why nobody could be asked.
	Above(ctx context.Context, namespace string, c Controller) (Controller, error)
	// FirstOrdinal is that of a StatefulSet's pods, spec.ordinals.start. The error says why
	// nobody could be asked.
	FirstOrdinal(ctx context.Context, namespace, name string) (int, error)
	// Changed receives after changes of what the node depends on: Nodes, IPPools
	// (but for their status), Problems, Trouble. Changes that come close
	// together are told once.
	Changed() <-chan struct{}
	// String names the source for messages: "the manifests in /etc/…".
	String() string
}

// Snapshot is all objects at one moment.
type Snapshot struct {
	Nodes      map[string]Node
	Pods       map[string]Pod       // by namespace/name
	Namespaces map[string]Namespace // by name
	// IPPools are by name, valid or not, with FreeMap alone of their status. Nil
	// where none are read: without bridging mode, or before the API server has
	// told them.
	IPPools map[string]api.IPPool
	// NetworkPolicies are by what NetworkPolicy.String returns.
	NetworkPolicies map[string]NetworkPolicy
	// Problems are sentences about input that was refused, one per file or
	// object; what it replaced is still in the snapshot.
	Problems []string
	// Unread is true as long as no Node was ever read: that one is missing
	// says nothing then.
	Unread bool
	// Kept is true as long as the Nodes are what a source told before a restart,
	// and it has not been heard since: one may be missing that is there now.
	Kept bool
	// Trouble says why the snapshot may be old; nil when it is not.
	Trouble error
}

// Node is what Fairlead needs of a Kubernetes Node.
type Node struct {
	Name string
	// PodCIDRs are spec.podCIDRs, or spec.podCIDR alone. At most one of each
	// family; empty when none is assigned.
	PodCIDRs []netip.Prefix
	// Addresses are the InternalIPs of status.addresses, in their order.
	Addresses []netip.Addr
	// TunnelAddresses are where other nodes send tunnel packets to, from the
	// annotation node.antrea.io/transport-addresses; without it Addresses.
	TunnelAddresses []netip.Addr
	// Created is metadata.creationTimestamp; zero when the manifest has none.
	Created time.Time
	// Runtime is status.nodeInfo.containerRuntimeVersion, "containerd://2.1.4"; empty when nobody has said.
	Runtime string
}

// TunnelAddr returns the first tunnel address of the family asked for.
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
	// Controller is whose controller made it, zero for nobody's, and Index the label
	// apps.kubernetes.io/pod-index.
	Controller Controller
	Index      string
}

// Controller is an object whose controller has made another: the ownerReference with
// controller: true.
type Controller struct{ APIVersion, Kind, Name, UID string }

// is tells whether p is the pod of that uid. Either may be unknown: a manifest
// need not have one.
func (p Pod) is(uid string) bool { return p.UID == uid || p.UID == "" || uid == "" }

// NetworkPolicy is a policy that somebody relies on, and that Fairlead does not
// enforce.
type NetworkPolicy struct {
	APIVersion, Kind     string
	Namespace, Name, UID string
}

// String returns "NetworkPolicy namespace/name", for other groups than Kubernetes'
// own "ClusterNetworkPolicy.group name".
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
}
