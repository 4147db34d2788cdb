// Package inputs reads what the node's agent is told: Nodes, Pods and
// Namespaces. It turns manifests into small values and tells when they change;
// it decides nothing. A Source that can't read an object keeps the last good
// one: bad input changes nothing.
package inputs

import (
	"context"
	"net/netip"
	"slices"
	"time"
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
	// Refresh reads the objects now and returns them, for a caller who knows
	// of an object that the last snapshot does not have yet.
	Refresh() *Snapshot
	// Changed receives after each change of the snapshot. Changes that come
	// close together are told once.
	Changed() <-chan struct{}
	// String names the source for messages: "manifests in /etc/…".
	String() string
}

// Snapshot is all objects at one moment.
type Snapshot struct {
	Nodes      map[string]Node
	Pods       map[string]Pod       // by namespace/name
	Namespaces map[string]Namespace // by name
	// Problems are sentences about input that was refused, one per file or
	// object; what it replaced is still in the snapshot.
	Problems []string
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
}

// Namespace is what Fairlead needs of a Kubernetes Namespace.
type Namespace struct {
	Name        string
	Annotations map[string]string
}
