package api

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// PoolGroup is the API group of IPPool, Antrea's. An IPPool may be written in either version. v1beta1 is what the API
// server stores; it converts by changing only the version's name, so that an object keeps the form it was written in.
const (
	PoolGroup         = "crd.antrea.io"
	PoolVersion       = "v1beta1"
	PoolVersionBefore = "v1alpha2"
	PoolKind          = "IPPool"
)

// PoolResource is the resource of IPPools.
var PoolResource = schema.GroupVersionResource{Group: PoolGroup, Version: PoolVersion, Resource: "ippools"}

// PoolFinalizer keeps a deleted IPPool until no address of it is in use.
const PoolFinalizer = "ipam.fairlead.dev/addresses"

// IPPool is a set of addresses for pods, as in its manifest. Package ipam/pool validates and interprets it.
type IPPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              IPPoolSpec   `json:"spec"`
	Status            IPPoolStatus `json:"status,omitempty"`
}

// IPPoolSpec has one of two forms. Either IPVersion is set and each range has a
// subnet of its own (v1alpha2), or SubnetInfo is the subnet of all ranges
// (v1beta1).
type IPPoolSpec struct {
	// IPVersion is 4 or 6.
	IPVersion  int         `json:"ipVersion,omitempty"`
	IPRanges   []IPRange   `json:"ipRanges"`
	SubnetInfo *SubnetInfo `json:"subnetInfo,omitempty"`
	// Excludes are addresses, CIDRs and ranges FIRST-LAST that are not allocated. Antrea does not have it.
	Excludes []string `json:"excludes,omitempty"`
}

// IPRange is a CIDR, or the addresses from Start to End, both included. In the form of v1alpha2 it includes its subnet.
type IPRange struct {
	CIDR       string `json:"cidr,omitempty"`
	Start      string `json:"start,omitempty"`
	End        string `json:"end,omitempty"`
	SubnetInfo `json:",inline"`
}

// SubnetInfo is the subnet of the underlay that a range lies in.
type SubnetInfo struct {
	// Gateway is the underlay's router.
	Gateway string `json:"gateway,omitempty"`
	// PrefixLength is the subnet's, in bits.
	PrefixLength int `json:"prefixLength,omitempty"`
	// VLAN is the tag on the wire, 1 to 4094 (IEEE 802.1Q). 0 is untagged.
	VLAN int `json:"vlan,omitempty"`
}

// IPPoolStatus is what fairlead-controller reports about a pool. Agents do not need it.
type IPPoolStatus struct {
	// IPAddresses is Antrea's data, preserved as it is.
	IPAddresses json.RawMessage    `json:"ipAddresses,omitempty"`
	Usage       *PoolUsage         `json:"usage,omitempty"`
	Conditions  []metav1.Condition `json:"conditions,omitempty"`
	// FreeMap has ranges FIRST-LAST, or single addresses, that were free when it was written, at most PoolFreeMapMost
	// of them. It is a hint where to search first and may be stale.
	FreeMap []string `json:"freeMap,omitempty"`
}

// PoolFreeMapMost is how many ranges IPPoolStatus.FreeMap has at most: more than addresses are allocated in the second
// until the next one, so that nodes need not list a large pool that is nearly full. A shorter list is complete.
const PoolFreeMapMost = 512

// PoolUsage counts addresses. Total saturates at math.MaxInt64.
type PoolUsage struct {
	// Used counts addresses in use, including cooling ones.
	Used int64 `json:"used"`
	// Total is how many addresses the pool can allocate.
	Total int64 `json:"total"`
}

// EventPool begins the reasons of Events about an IPPool; the condition that has become true follows.
const EventPool = "Pool"

// Conditions of an IPPool. Ready is True while addresses are allocated from it.
const (
	PoolReady     = "Ready"
	PoolInvalid   = "Invalid"
	PoolExhausted = "Exhausted"
	// PoolFilling: more than the warning threshold is in use.
	PoolFilling     = "Filling"
	PoolOverlapping = "Overlapping"
)
