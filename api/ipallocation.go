package api

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// AllocationGroup, AllocationVersion and AllocationKind are the API's names for an IPAllocation.
const (
	AllocationGroup   = "ipam.fairlead.dev"
	AllocationVersion = "v1alpha1"
	AllocationKind    = "IPAllocation"
)

// AllocationResource is the resource of IPAllocations.
var AllocationResource = schema.GroupVersionResource{
	Group: AllocationGroup, Version: AllocationVersion, Resource: "ipallocations"}

// EventAddressReclaimed is the reason of an Event: an address was reclaimed from an owner that is gone.
const EventAddressReclaimed = "AddressReclaimed"

// Paths of field selectors on IPAllocations.
const (
	AllocationNodeField    = "spec.owner.node"
	AllocationPoolField    = "spec.pool"
	AllocationPhaseField   = "spec.phase"
	AllocationUIDField     = "spec.reservation.uid"
	AllocationOrdinalField = "spec.reservation.ordinal"
)

// IPAllocation is one address in use. It is named by the address (see package ipam/allocation), so that the API server
// creates it for one owner and reports to all others that it exists. Creating it allocates the address, deleting it
// releases it.
type IPAllocation struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              IPAllocationSpec `json:"spec"`
}

// IPAllocationSpec is the use of the address. There is no status, so that one write creates a complete allocation.
type IPAllocationSpec struct {
	// Address is the IP address.
	Address string `json:"address"`
	// Pool is the name of the IPPool.
	Pool  string          `json:"pool"`
	Phase AllocationPhase `json:"phase"`
	Owner AllocationOwner `json:"owner"`
	// Until is when Cooling or Conflict ends: then the allocation may be deleted to allocate the address again.
	Until *MicroTime `json:"until,omitempty"`
	// MAC is that of the host that replied for the address, in phase Conflict.
	MAC string `json:"mac,omitempty"`
	// Reservation, if set, outlives owners: when an owner is gone, the phase is Reserved again, without owner.
	Reservation *AllocationReservation `json:"reservation,omitempty"`
}

// AllocationReservation is the pod that an address is reserved for over restarts and rescheduling. UID and Ordinal
// identify it.
type AllocationReservation struct {
	// Kind, Namespace, Name and UID are those of the object with which the reservation ends: a StatefulSet, a
	// Deployment, a VirtualMachine.
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	// Ordinal is that of the StatefulSet's pod; 0 for other kinds.
	Ordinal int `json:"ordinal"`
	// MAC, if set, is reserved as well.
	MAC string `json:"mac,omitempty"`
}

// String names the pod that the address is reserved for, for messages.
func (r AllocationReservation) String() string {
	if r.Kind == KindStatefulSet {
		return fmt.Sprintf("%s %s/%s, ordinal %d", r.Kind, r.Namespace, r.Name, r.Ordinal)
	}
	return fmt.Sprintf("%s %s/%s", r.Kind, r.Namespace, r.Name)
}

// Same reports whether both are for the same pod.
func (r AllocationReservation) Same(o AllocationReservation) bool {
	return r.UID == o.UID && r.Ordinal == o.Ordinal
}

// Kinds of objects for whose pods addresses are reserved.
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
	// PhaseReserved: reserved for a pod that does not run.
	PhaseReserved AllocationPhase = "Reserved"
	// PhaseCooling: released, and not allocated before Until, because neighbours may still have the previous owner in
	// their ARP caches.
	PhaseCooling AllocationPhase = "Cooling"
	// PhaseConflict: a host outside of the cluster replied for it on the wire.
	PhaseConflict AllocationPhase = "Conflict"
)

// AllocationOwner is one network interface of one pod. ContainerID, IfName, Network and IPAMOnly identify it.
type AllocationOwner struct {
	// PodUID, Namespace and Name are empty if the caller is not Kubernetes.
	PodUID    string `json:"podUID,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	// ContainerID and IfName are CNI_CONTAINERID and CNI_IFNAME, Network the
	// name in the CNI network configuration.
	ContainerID string `json:"containerID,omitempty"`
	IfName      string `json:"ifName,omitempty"`
	Network     string `json:"network,omitempty"`
	// IPAMOnly: another CNI plugin, such as macvlan, created the interface, and Fairlead is its IPAM plugin. It has no
	// Open vSwitch port and no interface of Fairlead's.
	IPAMOnly bool `json:"ipamOnly,omitempty"`
	// Node is the name of the node.
	Node string `json:"node,omitempty"`
	// Netns is CNI_NETNS, and BootID /proc/sys/kernel/random/boot_id: evidence of whether the owner is alive.
	Netns  string `json:"netns,omitempty"`
	BootID string `json:"bootID,omitempty"`
}

// String names the owner for messages: the pod, else the container, and its node.
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
