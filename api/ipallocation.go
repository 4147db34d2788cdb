package api

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// AllocationGroup, AllocationVersion and AllocationKind are the API's names for an
// IPAllocation.
const (
	AllocationGroup   = "ipam.fairlead.dev"
	AllocationVersion = "v1alpha1"
	AllocationKind    = "IPAllocation"
)

// AllocationResource is where programs read and write IPAllocations.
var AllocationResource = schema.GroupVersionResource{
	Group: AllocationGroup, Version: AllocationVersion, Resource: "ipallocations"}

// EventAddressReclaimed is the reason of an Event: an address was taken back from an owner that is gone.
const EventAddressReclaimed = "AddressReclaimed"

// Paths of field selectors on IPAllocations.
const (
	AllocationNodeField    = "spec.owner.node"
	AllocationPoolField    = "spec.pool"
	AllocationUIDField     = "spec.reservation.uid"
	AllocationOrdinalField = "spec.reservation.ordinal"
)

// IPAllocation is one address that somebody holds. It is named by the address
// (see package ipam/allocation), so that the API server lets one holder create
// it and tells all others that it exists. To create it is to take the address, to
// delete it is to free it.
type IPAllocation struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              IPAllocationSpec `json:"spec"`
}

// IPAllocationSpec says who holds the address. There is no status: one write
// makes an allocation whole.
type IPAllocationSpec struct {
	// Address is the IP address.
	Address string `json:"address"`
	// Pool is the name of the IPPool.
	Pool  string          `json:"pool"`
	Phase AllocationPhase `json:"phase"`
	Owner AllocationOwner `json:"owner"`
	// Until is when Cooling or Conflict ends: then whoever needs the address
	// deletes the allocation and makes another.
	Until *metav1.MicroTime `json:"until,omitempty"`
	// MAC is who answered for the address on the wire, in phase Conflict.
	MAC string `json:"mac,omitempty"`
	// Reservation, if there is one, outlives owners: when an owner goes, the phase
	// is Reserved again, with no owner.
	Reservation *AllocationReservation `json:"reservation,omitempty"`
}

// AllocationReservation says for whom an address is kept over restarts and
// rescheduling. UID and Ordinal tell it from others.
type AllocationReservation struct {
	// Kind, Namespace, Name and UID are those of the object that the address is
	// freed with: a StatefulSet, a Deployment, a VirtualMachine.
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	// Ordinal is that of the StatefulSet's pod; 0 for other kinds.
	Ordinal int `json:"ordinal"`
	// MAC, if it is there, is kept as well.
	MAC string `json:"mac,omitempty"`
}

// String names for whom the address is kept, for people.
func (r AllocationReservation) String() string {
	if r.Kind == KindStatefulSet {
		return fmt.Sprintf("%s %s/%s, ordinal %d", r.Kind, r.Namespace, r.Name, r.Ordinal)
	}
	return fmt.Sprintf("%s %s/%s", r.Kind, r.Namespace, r.Name)
}

// Same tells whether both are for the same pod.
func (r AllocationReservation) Same(o AllocationReservation) bool {
	return r.UID == o.UID && r.Ordinal == o.Ordinal
}

// Kinds of objects for whose pods addresses are kept.
const (
	KindStatefulSet = "StatefulSet"
	KindDeployment  = "Deployment"
	KindReplicaSet  = "ReplicaSet"
	// KindVM and KindVMI are KubeVirt's.
	KindVM  = "VirtualMachine"
	KindVMI = "VirtualMachineInstance"
)

// AllocationPhase is the state of an allocation.
type AllocationPhase string

// The phases. All count as used.
const (
	// PhaseAllocated: the owner's interface has the address.
	PhaseAllocated AllocationPhase = "Allocated"
	// PhaseReserved: kept for an owner that does not run.
	PhaseReserved AllocationPhase = "Reserved"
	// PhaseCooling: given back, and not handed out before Until, because
	// neighbours may still know the owner of before.
	PhaseCooling AllocationPhase = "Cooling"
	// PhaseConflict: somebody on the wire who is no pod of ours answered for it.
	PhaseConflict AllocationPhase = "Conflict"
)

// AllocationOwner is one network interface of one pod. ContainerID, IfName, Network
// and IPAMOnly tell it from others.
type AllocationOwner struct {
	// PodUID, Namespace and Name are empty when the caller is not Kubernetes.
	PodUID    string `json:"podUID,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	// ContainerID and IfName are CNI_CONTAINERID and CNI_IFNAME, Network the
	// name in the CNI network configuration.
	ContainerID string `json:"containerID,omitempty"`
	IfName      string `json:"ifName,omitempty"`
	Network     string `json:"network,omitempty"`
	// IPAMOnly: another CNI plugin, such as macvlan, made the interface and took the
	// address from us. No Open vSwitch port and no interface of ours stands for it.
	IPAMOnly bool `json:"ipamOnly,omitempty"`
	// Node is the name of the node.
	Node string `json:"node,omitempty"`
	// Netns is CNI_NETNS, and BootID /proc/sys/kernel/random/boot_id: witnesses
	// that the owner lives.
	Netns  string `json:"netns,omitempty"`
	BootID string `json:"bootID,omitempty"`
}

// String names the owner for people: the pod, else the container, and its node.
func (o AllocationOwner) String() string {
	who := "container " + o.ContainerID
	if o.Name != "" {
		who = "pod " + o.Namespace + "/" + o.Name
	}
	if o.Node == "" {
		return who
	}
	return who + " on node " + o.Node
}
