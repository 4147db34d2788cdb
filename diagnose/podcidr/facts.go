package podcidr

import (
	"net/netip"
	"time"

	"github.com/fairlead-cni/fairlead/ipam/blocks"
)

// Range is a cluster CIDR and the length of the podCIDRs that it is cut into.
type Range = blocks.Range

// Answer is yes, no, or unknown, which is its zero value.
type Answer int

// The answers.
const (
	Unknown Answer = iota
	Yes
	No
)

// Facts are what is known about the cluster besides its Nodes. In the zero value nothing is known.
type Facts struct {
	// NodeIPAM is the state of fairlead-controller's allocator; nil: it is disabled, and kube-controller-manager
	// assigns podCIDRs, or nothing does.
	NodeIPAM *NodeIPAM

	// Ranges are what podCIDRs are cut from, in the allocator's order, at most one per family except with NodeIPAM.
	// Empty: unknown, or none is set.
	Ranges []Range
	// RangesFrom is the source of Ranges: "the command of Pod kube-system/…".
	RangesFrom string
	// Guessed: Ranges are derived from the Nodes' podCIDRs.
	Guessed bool

	// Services are the Service CIDRs.
	Services     []netip.Prefix
	ServicesFrom string
	// LeftOut are what kube-controller-manager excludes from Ranges (--service-cluster-ip-range). It assigns podCIDRs
	// that overlap other Service CIDRs.
	LeftOut []netip.Prefix

	// Allocates: an allocator is configured (--allocate-node-cidrs and a --controllers with node-ipam).
	Allocates Answer
	// AllocatesNot is why Allocates is No: "it runs without --allocate-node-cidrs".
	AllocatesNot string
	// Runs: the allocator's process runs: fairlead-controller with NodeIPAM, else kube-controller-manager.
	Runs Answer
	// RunsNot is why Runs is No, with the evidence.
	RunsNot string
	// Manifest is the file on its node that has its command; empty: it is not a static Pod.
	Manifest string

	// Kubeadm: the cluster was created by kubeadm. PodSubnet is then its networking.podSubnet (--pod-network-cidr).
	Kubeadm   bool
	PodSubnet string

	// Refused are the CIDRNotAvailable Events by node.
	Refused map[string]Refusal

	// Unread are messages about what could not be read, and why.
	Unread []string
}

// NodeIPAM is the state of fairlead-controller's allocator.
type NodeIPAM struct {
	// Stopped is why it assigns none: another allocator is active. Empty: it assigns.
	Stopped string
}

// Refusal is a CIDRNotAvailable Event: the allocator had no podCIDR for a Node.
type Refusal struct {
	Count int
	Last  time.Time
}
