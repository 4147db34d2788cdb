// Package ordinals determines which addresses of IPPools the pods of a StatefulSet need, by their ordinals, and chooses
// them. It is pure: what it chooses has yet to be reserved, and another owner may be faster.
package ordinals

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/ipam/pool"
	"github.com/fairlead-cni/fairlead/ipam/selection"
)

// View is the input for the needs of StatefulSets.
type View struct {
	pools      map[string]api.IPPool
	namespaces map[string]map[string]string // annotations
}

// NewView returns the view of these objects.
func NewView(pools []*api.IPPool, namespaces []*corev1.Namespace) View {
	v := View{map[string]api.IPPool{}, map[string]map[string]string{}}
	for _, p := range pools {
		v.pools[p.Name] = *p
	}
	for _, n := range namespaces {
		v.namespaces[n.Name] = n.Annotations
	}
	return v
}

// Needs is what a StatefulSet needs: an address of each family for each of n pods, from ordinal first on. It is pure.
type Needs struct {
	View
	Set       *appsv1.StatefulSet
	first, n  int
	families  []int
	Requested selection.PoolRequest
	// Err says why the set cannot have what it asks for.
	Err error
}

// Needs returns empty needs for a set that asks for no IPPool.
func (v View) Needs(set *appsv1.StatefulSet) Needs {
	n := Needs{View: v, Set: set, n: 1}
	if set.Spec.Replicas != nil {
		n.n = int(*set.Spec.Replicas)
	}
	if set.Spec.Ordinals != nil {
		n.first = int(set.Spec.Ordinals.Start)
	}
	template := selection.Object{Name: "StatefulSet " + set.Namespace + "/" + set.Name, Annotations: set.Spec.Template.Annotations}
	in := selection.Object{Name: "Namespace " + set.Namespace, Annotations: v.namespaces[set.Namespace]}
	if !selection.RequestsPool(template, in) {
		return n
	}
	if _, n.Err = template.Sticky(); n.Err != nil {
		return n
	}
	if n.Requested, n.Err = selection.ReadSet(template, in); n.Err != nil {
		return n
	}
	for _, name := range n.Requested.Pools {
		p, err := pool.Read(v.pools[name])
		if err != nil { // Choose has the better message
			_, n.Err = n.Requested.Choose(selection.Known{IPPools: v.pools})
			return n
		}
		if !slices.Contains(n.families, p.Family) {
			n.families = append(n.families, p.Family)
		}
	}
	slices.Sort(n.families)
	return n
}

// wants reports whether the set needs the Slot.
func (n Needs) wants(s Slot) bool {
	return s.Ordinal >= n.first && s.Ordinal < n.first+n.n && slices.Contains(n.families, s.Family)
}

// Missing are the slots without an allocation in have, sorted.
func (n Needs) Missing(have []api.IPAllocation) []Slot {
	filled := addressesOf(have)
	var out []Slot
	for ordinal := n.first; ordinal < n.first+n.n; ordinal++ {
		for _, f := range n.families {
			if _, has := filled[Slot{ordinal, f}]; !has {
				out = append(out, Slot{ordinal, f})
			}
		}
	}
	return out
}

// Surplus are reservations that are not needed: of ordinals that the set no longer has, of a family that it does not
// ask for, of a deleted pool, of another address than the requested one, and duplicates. What a pod has is never
// surplus.
func (n Needs) Surplus(have []api.IPAllocation) (out []api.IPAllocation) {
	have = slices.Clone(have)
	allocation.Standing(have)
	seen := map[Slot]bool{}
	named := n.named(n.Missing(nil))
	for _, a := range have {
		s, addr, ok := SlotOf(a)
		if !ok {
			continue
		}
		want, requests := named[s]
		wanted := n.wants(s) && (!requests || want == addr)
		if n.Err != nil { // what it asks for is unknown, and may be the same as before
			wanted = s.Ordinal >= n.first && s.Ordinal < n.first+n.n
		}
		p, there := n.pools[a.Spec.Pool]
		wanted = wanted && !seen[s] && there && p.DeletionTimestamp == nil
		if seen[s] = true; !wanted && a.Spec.Phase == api.PhaseReserved {
			out = append(out, a)
		}
	}
	return out
}

// named are the addresses that the set requests.
func (n Needs) named(slots []Slot) map[Slot]netip.Addr {
	out := map[Slot]netip.Addr{}
	if len(n.Requested.PodIPs) == 0 {
		return out
	}
	for _, s := range slots {
		of, err := n.Requested.Of(s.Ordinal - n.first)
		if err != nil { // fewer addresses than pods: this one gets none
			out[s] = netip.Addr{}
		}
		for _, addr := range of.PodIPs {
			if addr.Is4() == (s.Family == 4) {
				out[s] = addr
			}
		}
	}
	return out
}

// Choose returns the pools that the set asks for.
func (n Needs) Choose(others pool.Others) ([]pool.Pool, error) {
	return n.Requested.Choose(selection.Known{IPPools: n.pools, Others: others})
}

// Reservation is the reservation of an ordinal's address.
func (n Needs) Reservation(ordinal int) *api.AllocationReservation {
	return &api.AllocationReservation{Kind: api.KindStatefulSet, Namespace: n.Set.Namespace, Name: n.Set.Name,
		UID: string(n.Set.UID), Ordinal: ordinal}
}

// Allocation is the allocation that reserves a choice.
func (n Needs) Allocation(c Choice) api.IPAllocation {
	return api.IPAllocation{ObjectMeta: metav1.ObjectMeta{Name: allocation.Name("", c.Addr)},
		Spec: api.IPAllocationSpec{Address: c.Addr.String(), Pool: c.Pool, Phase: api.PhaseReserved,
			Reservation: n.Reservation(c.Ordinal)}}
}

// Allocations are the allocations that reserve all choices.
func (n Needs) Allocations(made []Choice) (out []api.IPAllocation) {
	for _, c := range made {
		out = append(out, n.Allocation(c))
	}
	return out
}

// PodOf is the name of the pod of an ordinal.
func (n Needs) PodOf(ordinal int) string { return n.Set.Name + "-" + strconv.Itoa(ordinal) }

// ShortageText is a message about the pods without a reserved address.
func (n Needs) ShortageText(rest []Slot) string {
	const most = 5
	var pods []string
	for _, s := range rest {
		if pod := n.PodOf(s.Ordinal); !slices.Contains(pods, pod) {
			pods = append(pods, pod)
		}
	}
	count := len(pods)
	if count > most {
		pods = append(pods[:most:most], fmt.Sprintf("and %d more", count-most))
	}
	why := "no address is free in IPPool " + strings.Join(n.Requested.Pools, ", ") + ": extend spec.ipRanges, or scale the StatefulSet down"
	for _, s := range rest {
		if addr, named := n.named(rest)[s]; named && addr.IsValid() {
			why = fmt.Sprintf("%s, which the annotation %s names, has another owner: kubectl get ipallocation %s shows it. "+
				"Delete that pod, or name another address", addr, api.AnnotationPodIPs, allocation.Name("", addr))
		} else if named {
			why = fmt.Sprintf("the annotation %s names fewer addresses than the StatefulSet has pods: name more, or scale it down",
				api.AnnotationPodIPs)
		}
	}
	return fmt.Sprintf("reserving an address for %s failed: %s. It will be retried", strings.Join(pods, ", "), why)
}

// SlotOf is the slot that a reservation fills; false for an address of an isolated network.
func SlotOf(a api.IPAllocation) (Slot, netip.Addr, bool) {
	scope, addr, err := allocation.ParseName(a.Name)
	if err != nil || scope != "" {
		return Slot{}, addr, false
	}
	family := 6
	if addr.Is4() {
		family = 4
	}
	return Slot{a.Spec.Reservation.Ordinal, family}, addr, true
}

// addressesOf are the filled slots.
func addressesOf(have []api.IPAllocation) map[Slot]netip.Addr {
	have = slices.Clone(have)
	allocation.Standing(have)
	out := map[Slot]netip.Addr{}
	for _, a := range have {
		if s, addr, ok := SlotOf(a); ok && !out[s].IsValid() {
			out[s] = addr
		}
	}
	return out
}

// Place chooses addresses for slots: see place. have are the set's reservations, used are all addresses in use, sorted.
func (n Needs) Place(slots []Slot, have []api.IPAllocation, pools []pool.Pool, used []netip.Addr) []Choice {
	p := placing{pools: pools, named: n.named(slots), have: addressesOf(have), used: used}
	chosen, _ := p.place(slots)
	return chosen
}
