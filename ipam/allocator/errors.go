package allocator

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/fairlead-cni/fairlead/api"
)

// ExhaustedError says that no pool of a family has a free address.
type ExhaustedError struct{ Pools []Usage }

// Usage is how full a pool was.
type Usage struct {
	Pool        string
	Used, Total int64
	// Cooling and Conflicts are among Used: addresses given back a moment ago, and
	// addresses that somebody else on the wire has.
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

// PodIPError says why an address that was asked for is not given.
type PodIPError struct {
	Address netip.Addr
	// Reason is the sentence behind the address.
	Reason string
	// Holder is who has the address, if that is why.
	Holder *api.IPAllocation
}

func (e *PodIPError) Error() string {
	return fmt.Sprintf("address %s of the annotation %s %s", e.Address, api.AnnotationPodIPs, e.Reason)
}

// VLANError says that the families of a dual-stack pod would be in two VLANs.
type VLANError struct {
	Pool string
	// Want is the VLAN of the first address, which Pool has none in.
	Want uint16
}

func (e *VLANError) Error() string {
	return fmt.Sprintf("pool %s has no addresses in VLAN %d, where the other address of the pod is: a pod has one VLAN. Name pools of the same spec vlan", e.Pool, e.Want)
}

// StickyError says that an address is kept for the pod that wants it, and that another
// pod has it still.
type StickyError struct {
	Holder api.IPAllocation
	// Pod is who wants it.
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

// AnswersError says that an address that is kept is in use on the wire by the pod that
// had it before, though nobody holds it any more.
type AnswersError struct {
	Address netip.Addr
	MAC     api.MAC
	Keep    api.AllocationReservation
}

func (e *AnswersError) Error() string {
	return fmt.Sprintf("address %s is reserved for it (%s), but the previous pod still answers for it on the wire (MAC %s) although its node counts as fenced: switch that node off, or kill the pod there", e.Address, e.Keep, e.MAC)
}
