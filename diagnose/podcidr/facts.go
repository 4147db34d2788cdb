package podcidr

import (
	"net/netip"
	"time"

	"github.com/fairlead-cni/fairlead/ipam/blocks"
	"github.com/fairlead-cni/fairlead/kube/inputs"
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

// Facts are what is known of the cluster beside its Nodes. The zero value knows
// nothing.
type Facts struct {
	// NodeIPAM says what fairlead-controller tells of its own allocator; nil: that
	// is off, and kube-controller-manager is who gives podCIDRs, or nobody.
	NodeIPAM *NodeIPAM

	// Ranges are what podCIDRs are cut from, in the allocator's order, at most
	// one of each family but with NodeIPAM. Empty: unknown, or none is set.
	Ranges []Range
	// RangesFrom says where Ranges come from: "the command of Pod kube-system/…".
	RangesFrom string
	// Guessed: Ranges come from the shape of the Nodes' podCIDRs.
	Guessed bool

	// Services are the Service CIDRs.
	Services     []netip.Prefix
	ServicesFrom string
	// LeftOut are what the allocator was told to leave out of Ranges
	// (--service-cluster-ip-range). Service CIDRs beside these it hands out.
	LeftOut []netip.Prefix

	// Allocates: somebody is told to give podCIDRs to Nodes
	// (--allocate-node-cidrs and a --controllers with node-ipam).
	Allocates Answer
	// AllocatesNot says why Allocates is No: "it runs without --allocate-node-cidrs".
	AllocatesNot string
	// Runs: that somebody runs: with NodeIPAM fairlead-controller, else
	// kube-controller-manager.
	Runs Answer
	// RunsNot says why Runs is No, with what was seen.
	RunsNot string
	// Manifest is the file with its command on its node; empty: not a static Pod.
	Manifest string

	// Kubeadm: the cluster was made by kubeadm. PodSubnet is then its
	// networking.podSubnet (--pod-network-cidr).
	Kubeadm   bool
	PodSubnet string

	// Refused are the CIDRNotAvailable Events by node.
	Refused map[string]Refusal

	// Underlay are networks that nodes are on, beside their addresses.
	Underlay []netip.Prefix

	// Unread are sentences about what could not be read, and why.
	Unread []string
}

// Refusal is a CIDRNotAvailable Event: the allocator had nothing for a Node.
type Refusal struct {
	Count int
	Last  time.Time
}

// sorted returns the Nodes by name.
func sorted(nodes map[string]inputs.Node) []inputs.Node {
	out := make([]inputs.Node, 0, len(nodes))
	for _, name := range names(nodes) {
		out = append(out, nodes[name])
	}
	return out
}
