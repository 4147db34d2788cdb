package allocator

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/fairlead-cni/fairlead/api"
)

// ExhaustedError: no pool of a family has a free address.
type ExhaustedError struct{ Pools []Usage }

// Usage is how full a pool was.
type Usage struct {
	Pool        string
	Used, Total int64
	// Cooling and Conflicts are among Used: addresses that are cooling, and addresses that a host outside of the
	// cluster uses.
	Cooling, Conflicts int64
}

func (e *ExhaustedError) Error() string {
	var full []string
	for _, u := range e.Pools {
		full = append(full, u.String())
	}
	return strings.Join(full, "; ") + ". Extend spec.ipRanges, or delete pods that use the pool"
}

func (u Usage) String() string {
	s := fmt.Sprintf("pool %s is exhausted: %d of %d addresses are in use", u.Pool, u.Used, u.Total)
	var of []string
	if u.Cooling > 0 {
		of = append(of, fmt.Sprintf("%d cooling", u.Cooling))
	}
	if u.Conflicts > 0 {
		of = append(of, fmt.Sprintf("%d by hosts outside of the cluster", u.Conflicts))
	}
	if len(of) > 0 {
		s += " (" + strings.Join(of, ", ") + ")"
	}
	return s
}

// PodIPError: a requested address cannot be allocated.
type PodIPError struct {
	Address netip.Addr
	// Reason is the part of the message after the address.
	Reason string
	// Holder is the allocation that has the address, if that is the reason.
	Holder *api.IPAllocation
}

func (e *PodIPError) Error() string {
	return fmt.Sprintf("address %s of the annotation %s %s", e.Address, api.AnnotationPodIPs, e.Reason)
}

// VLANError: the addresses of a dual-stack pod would be in two VLANs.
type VLANError struct {
	Pool string
	// Want is the VLAN of the first address. Pool has no addresses in it.
	Want uint16
}

func (e *VLANError) Error() string {
	return fmt.Sprintf("pool %s has no addresses in VLAN %d, which the pod's other address is in: a pod has one VLAN. Name pools of the same spec vlan", e.Pool, e.Want)
}

// StickyError: an address is reserved for the requesting pod, but another pod still has it.
type StickyError struct {
	Holder api.IPAllocation
	// Pod is the owner that requests it.
	Pod api.AllocationOwner
}

func (e *StickyError) Error() string {
	keep, has := e.Holder.Spec.Reservation, e.Holder.Spec.Owner
	s := fmt.Sprintf("address %s is reserved for it (%s), but %s still has it", e.Holder.Spec.Address, keep, has)
	if keep.Kind != api.KindStatefulSet && has.Name != e.Pod.Name {
		s += ": two pods cannot share an address. Set replicas: 1, and strategy.type: Recreate"
	} else if has.Node == e.Pod.Node {
		s += ", or its clean-up is not done. It will be retried"
	}
	if has.Node != "" && has.Node != e.Pod.Node {
		s += fmt.Sprintf(". If node %[1]s is permanently down: kubectl delete node %[1]s. If it is switched off: kubectl taint "+
			"node %[1]s node.kubernetes.io/out-of-service=nodeshutdown:NoExecute", has.Node)
	}
	return s
}

// StillInUseError: a reserved address is still in use on the wire by the pod that had it before, although released.
type StillInUseError struct {
	Address netip.Addr
	MAC     api.MAC
	Keep    api.AllocationReservation
}

func (e *StillInUseError) Error() string {
	return fmt.Sprintf("address %s is reserved for it (%s), but the previous pod still answers for it on the wire (MAC %s) although its node counts as fenced: switch that node off, or kill the pod there", e.Address, e.Keep, e.MAC)
}
