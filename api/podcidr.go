package api

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// PodCIDRClaimKind and PodCIDRRangeKind are the API's names for these kinds, of the group AllocationGroup and the
// version AllocationVersion.
const (
	PodCIDRClaimKind = "PodCIDRClaim"
	PodCIDRRangeKind = "PodCIDRRange"
)

// The resources of PodCIDRClaims and PodCIDRRanges.
var (
	ClaimResource = schema.GroupVersionResource{
		Group: AllocationGroup, Version: AllocationVersion, Resource: "podcidrclaims"}
	RangeResource = schema.GroupVersionResource{
		Group: AllocationGroup, Version: AllocationVersion, Resource: "podcidrranges"}
)

// PodCIDRClaim is a podCIDR that a Node has or will have. It is named by the podCIDR, so that the API server creates it
// for one Node.
type PodCIDRClaim struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              PodCIDRClaimSpec `json:"spec"`
}

// PodCIDRClaimSpec says which Node it is for. It is immutable.
type PodCIDRClaimSpec struct {
	// PodCIDR is the block, such as 10.244.3.0/24.
	PodCIDR string `json:"podCIDR"`
	// Node is the name of the Node, NodeUID its UID: another Node of the same name is a different one.
	Node    string `json:"node"`
	NodeUID string `json:"nodeUID"`
}

// PodCIDRRange is how full a range of nodeIPAM.clusterCIDRs is.
type PodCIDRRange struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              PodCIDRRangeSpec   `json:"spec"`
	Status            PodCIDRRangeStatus `json:"status,omitempty"`
}

// PodCIDRRangeSpec is a copy of fairlead-controller's config.
type PodCIDRRangeSpec struct {
	// ClusterCIDR is the range, NodeMask the length of the podCIDRs in it, in bits.
	ClusterCIDR string `json:"clusterCIDR"`
	NodeMask    int    `json:"nodeMask"`
}

// PodCIDRRangeStatus is in podCIDRs. Used are those that can no longer be assigned: Nodes have them, or a Service CIDR
// or a node's own address is in them.
type PodCIDRRangeStatus struct {
	Used       int64              `json:"used"`
	Total      int64              `json:"total"`
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Types of a PodCIDRRange's conditions.
const (
	// RangeReady: podCIDRs are assigned from it.
	RangeReady = "Ready"
	// RangeNearlyExhausted: less than 10 percent is free.
	RangeNearlyExhausted = "NearlyExhausted"
)

// Reasons of a PodCIDRRange's conditions.
const (
	ReasonAvailable = "Available"
	// ReasonExhausted: no podCIDR is left.
	ReasonExhausted = "Exhausted"
	// ReasonOtherAllocatorActive: another allocator assigns podCIDRs, too.
	ReasonOtherAllocatorActive = "OtherAllocatorActive"
	// ReasonNearlyExhausted: less than 10 percent is free.
	ReasonNearlyExhausted = "NearlyExhausted"
)

// Reasons of the Events about Nodes.
const (
	// EventCIDRNotAvailable: no podCIDR is left for a Node. kube-controller-manager uses the same reason.
	EventCIDRNotAvailable = "CIDRNotAvailable"
	// EventInvalidPodCIDR: a podCIDR of a Node overlaps, is in no range, or is missing in one family.
	EventInvalidPodCIDR = "InvalidPodCIDR"
	// EventOtherAllocatorActive: another allocator has assigned a podCIDR to a Node.
	EventOtherAllocatorActive = "OtherAllocatorActive"
)
