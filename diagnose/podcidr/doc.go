// Package podcidr finds out why a node has no podCIDR, or one that it should not use, and how to fix it, with numbers.
//
// It is pure: Diagnose and FindAll compute from Nodes and Facts. Read is the only function that accesses the cluster,
// and fills Facts with what it can read.
//
// New ranges are proposed only after they were tried with the allocator that assigns podCIDRs, a model of
// kube-controller-manager's (allocator.go) or fairlead-controller's own: it starts with them, each waiting node gets a
// podCIDR, and none of these overlaps another podCIDR, the Service CIDR or a node's address.
package podcidr

// Check is the name of this package's check in fairleadctl doctor.
const Check = "pod-cidr"

// The kinds of findings. The first eight are causes of an empty podCIDR.
const (
	// JustCreated: the Node is seconds old, and no other cause is known.
	JustCreated = "just-created"
	// Exhausted: the cluster CIDR has no block left.
	Exhausted = "range-exhausted"
	// BlocksLost: according to the Nodes blocks are free, but the allocator has none: it did not release those of some
	// deleted Nodes. A restart fixes that.
	BlocksLost = "blocks-lost"
	// AllocatorOff: no allocator is configured.
	AllocatorOff = "allocator-off"
	// NoPodNetworkCIDR is AllocatorOff because kubeadm was run without --pod-network-cidr.
	NoPodNetworkCIDR = "no-pod-network-cidr"
	// NotRunning: the allocator does not run, or cannot start with the current Nodes.
	NotRunning = "allocator-not-running"
	// TwoAllocators: fairlead-controller assigns none, because another allocator is active.
	TwoAllocators = "two-allocators"
	// NotGiven: the cause could not be determined.
	NotGiven = "not-given"

	// Duplicate: two nodes have the same podCIDR.
	Duplicate = "duplicate"
	// Overlap: with another podCIDR, a Service CIDR or a node's address.
	Overlap = "overlap"
	// OutOfRange: not cut from the cluster CIDR.
	OutOfRange = "out-of-range"
	// WrongFamily: of a family that the cluster's Services do not have.
	WrongFamily = "wrong-family"
	// Changed: pods run with addresses of an earlier podCIDR of the node.
	Changed = "changed"
)
