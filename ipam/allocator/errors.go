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
		of = append(of, fmt.Sprintf("%d by others on the wire", u.Conflicts))
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
	return fmt.Sprintf("pool %s has no addresses in VLAN %d, where the other address of the pod is: "+
		"a pod is in one VLAN. Name pools of the same spec vlan", e.Pool, e.Want)
}
