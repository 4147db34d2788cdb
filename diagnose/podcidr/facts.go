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

// Facts are what is known of the cluster beside its Nodes. The zero value knows nothing.
type Facts struct {
	// NodeIPAM is the state of fairlead-controller's allocator; nil: that is off, and kube-controller-manager assigns
	// podCIDRs, or nothing does.
	NodeIPAM *NodeIPAM

	// Ranges are what podCIDRs are cut from, in the allocator's order, at most one of each family but with NodeIPAM.
	// Empty: unknown, or none is set.
	Ranges []Range
	// RangesFrom says where Ranges come from: "the command of Pod kube-system/…".
	RangesFrom string
	// Guessed: Ranges come from the shape of the Nodes' podCIDRs.
	Guessed bool

	// Services are the Service CIDRs.
	Services     []netip.Prefix
	ServicesFrom string
	// LeftOut are what kube-controller-manager leaves out of Ranges (--service-cluster-ip-range). Other Service CIDRs it
	// assigns.
	LeftOut []netip.Prefix

	// Allocates: an allocator is configured (--allocate-node-cidrs and a --controllers with node-ipam).
	Allocates Answer
	// AllocatesNot says why Allocates is No: "it runs without --allocate-node-cidrs".
	AllocatesNot string
	// Runs: its process runs, fairlead-controller with NodeIPAM, else kube-controller-manager.
	Runs Answer
	// RunsNot says why Runs is No, with what was seen.
	RunsNot string
	// Manifest is the file with its command on its node; empty: not a static Pod.
	Manifest string

	// Kubeadm: the cluster was created by kubeadm. PodSubnet is then its networking.podSubnet (--pod-network-cidr).
	Kubeadm   bool
	PodSubnet string

	// Refused are the CIDRNotAvailable Events by node.
	Refused map[string]Refusal

	// Unread are sentences about what could not be read, and why.
	Unread []string
}

// NodeIPAM is the state of fairlead-controller's allocator.
type NodeIPAM struct {
	// Stopped is why it assigns none: another allocator does. Empty: it assigns.
	Stopped string
}

// Refusal is a CIDRNotAvailable Event: the allocator had nothing for a Node.
type Refusal struct {
	Count int
	Last  time.Time
}
