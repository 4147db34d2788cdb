package podcidr

import (
	"fmt"
	"net/netip"
	"strings"
)

// Kind is a cause that Fairlead tells apart.
type Kind string

// The kinds. The first eight are causes of an empty podCIDR.
const (
	// JustCreated: the Node is seconds old, and nothing speaks against it.
	JustCreated Kind = "just-created"
	// Exhausted: the cluster CIDR has no block left.
	Exhausted Kind = "range-exhausted"
	// BlocksLost: by the Nodes there are free blocks, but the allocator knows
	// of none: it forgot to free some, and remembers after a restart.
	BlocksLost Kind = "blocks-lost"
	// AllocatorOff: nobody is told to give podCIDRs.
	AllocatorOff Kind = "allocator-off"
	// NoPodNetworkCIDR is AllocatorOff by kubeadm without --pod-network-cidr.
	NoPodNetworkCIDR Kind = "no-pod-network-cidr"
	// NotRunning: whoever gives podCIDRs does not run, or can't start with
	// the Nodes as they are.
	NotRunning Kind = "allocator-not-running"
	// TwoAllocators: fairlead-controller gives none, since somebody else does.
	TwoAllocators Kind = "two-allocators"
	// NotGiven: nothing that could be read tells why.
	NotGiven Kind = "not-given"

	// Duplicate: two nodes have the same podCIDR.
	Duplicate Kind = "duplicate"
	// Overlap: with another podCIDR, a Service CIDR or an address of a node.
	Overlap Kind = "overlap"
	// OutOfRange: not cut from the cluster CIDR.
	OutOfRange Kind = "out-of-range"
	// WrongFamily: of a family that the cluster's Services do not have.
	WrongFamily Kind = "wrong-family"
	// Changed: pods run with addresses of a podCIDR that the node had before.
	Changed Kind = "changed"
)

// SeeAlso ends each message.
const SeeAlso = "See: fairleadctl doctor pod-cidr"

// Diagnosis is one problem: its cause in numbers, and what mends it.
type Diagnosis struct {
	Kind Kind `json:"kind"`
	// Nodes are those that can't serve pods because of it, by name; Diagnose
	// puts the one that it was asked for first. With are the others in it.
	Nodes []string `json:"nodes,omitempty"`
	With  []string `json:"with,omitempty"`
	// Pods are those that it concerns, by namespace/name.
	Pods []string `json:"pods,omitempty"`
	// Warning: pods are served all the same.
	Warning bool `json:"warning,omitempty"`
	// Cause is one sentence or more, with the numbers.
	Cause string `json:"cause"`
	// Remedies each mend it, best first. Empty: none was found that would work.
	Remedies []Remedy `json:"remedies,omitempty"`
	// NoHelp are sentences about what does not help, and why.
	NoHelp []string `json:"noHelp,omitempty"`
	// Evidence says where the numbers come from, and what could not be read.
	Evidence []string `json:"evidence,omitempty"`
	// Seen are Events, with counts and times. They are not in the Message, which
	// stays the same as long as the cause does.
	Seen []string `json:"seen,omitempty"`
}

// Remedy is a change that was tried on the model of the allocator.
type Remedy struct {
	// Text is one sentence, in the imperative.
	Text string `json:"text"`
	// Ranges are what the allocator is to be started with; nil: as it is.
	Ranges []Range `json:"ranges,omitempty"`
	// LeftOut is what --service-cluster-ip-range is to be; nil: as it is.
	LeftOut []netip.Prefix `json:"leftOut,omitempty"`
	// Recreate are Nodes to delete and create again one after the other, after
	// the change of Ranges.
	Recreate []Recreation `json:"recreate,omitempty"`
	// Together: all are deleted before the first is created.
	Together bool `json:"together,omitempty"`
	// Restart: at last kube-controller-manager is to be restarted, as it is.
	Restart bool `json:"restart,omitempty"`
	// Commands carry it out, one shell command or comment ("# …") each.
	Commands []string `json:"commands,omitempty"`
	// Beware are sentences about what it costs.
	Beware []string `json:"beware,omitempty"`
}

// Message is the whole in one line, for a log, an Event or a CNI error.
func (d *Diagnosis) Message() string {
	parts := []string{dot(d.Cause)}
	for i, r := range d.Remedies {
		text := dot(r.Text)
		if i > 0 {
			text = "Or: " + lower(text)
		}
		parts = append(parts, text)
	}
	for _, n := range d.NoHelp {
		parts = append(parts, dot(n))
	}
	if len(d.Evidence) > 0 {
		parts = append(parts, "("+dot(strings.Join(d.Evidence, "; "))+")")
	}
	return strings.Join(append(parts, SeeAlso), " ")
}

func dot(s string) string {
	if strings.HasSuffix(s, ".") {
		return s
	}
	return s + "."
}

func lower(s string) string { return strings.ToLower(s[:1]) + s[1:] }

// count says how many in words: one has its own sentence.
func count(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return fmt.Sprintf(many, n)
}

// some keeps a list in a sentence short.
func some(list []string) string {
	const most = 5
	if len(list) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), len(list)-most)
	}
	return strings.Join(list, ", ")
}

func join[T fmt.Stringer](list []T) string {
	var out []string
	for _, v := range list {
		out = append(out, v.String())
	}
	return strings.Join(out, ",")
}
