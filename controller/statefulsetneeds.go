package controller

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

// view is what the needs of StatefulSets are read from.
type view struct {
	pools      map[string]api.IPPool
	namespaces map[string]map[string]string // annotations
}

func newView(pools []*api.IPPool, namespaces []*corev1.Namespace) view {
	v := view{map[string]api.IPPool{}, map[string]map[string]string{}}
	for _, p := range pools {
		v.pools[p.Name] = *p
	}
	for _, n := range namespaces {
		v.namespaces[n.Name] = n.Annotations
	}
	return v
}

// needs is what a StatefulSet needs: an address of each family for each of n pods, from
// ordinal first on. It is pure.
type needs struct {
	view
	set      *appsv1.StatefulSet
	first, n int
	families []int
	asked    selection.PoolRequest
	// err says why the set can't have what it asks for.
	err error
}

// needs returns nothing to need for a set that asks for no IPPool.
func (v view) needs(set *appsv1.StatefulSet) needs {
	n := needs{view: v, set: set, n: 1}
	if set.Spec.Replicas != nil {
		n.n = int(*set.Spec.Replicas)
	}
	if set.Spec.Ordinals != nil {
		n.first = int(set.Spec.Ordinals.Start)
	}
	template := selection.Object{Name: "StatefulSet " + set.Namespace + "/" + set.Name, Annotations: set.Spec.Template.Annotations}
	in := selection.Object{Name: "Namespace " + set.Namespace, Annotations: v.namespaces[set.Namespace]}
	if !selection.Asks(template, in) {
		return n
	}
	if _, n.err = template.Sticky(); n.err != nil {
		return n
	}
	if n.asked, n.err = selection.ReadSet(template, in); n.err != nil {
		return n
	}
	for _, name := range n.asked.Pools {
		p, err := pool.Read(v.pools[name])
		if err != nil { // choose says more
			_, n.err = n.asked.Choose(selection.Known{IPPools: v.pools})
			return n
		}
		if !slices.Contains(n.families, p.Family) {
			n.families = append(n.families, p.Family)
		}
	}
	slices.Sort(n.families)
	return n
}

// wants tells whether the set needs the slot.
func (n needs) wants(s slot) bool {
	return s.ordinal >= n.first && s.ordinal < n.first+n.n && slices.Contains(n.families, s.family)
}

// missing are slots that nothing of have is for, sorted.
func (n needs) missing(have []api.IPAllocation) []slot {
	filled := addressesOf(have)
	var out []slot
	for ordinal := n.first; ordinal < n.first+n.n; ordinal++ {
		for _, f := range n.families {
			if _, has := filled[slot{ordinal, f}]; !has {
				out = append(out, slot{ordinal, f})
			}
		}
	}
	return out
}

// surplus is what is kept and not needed: of ordinals that the set has no longer, of
// a family that it does not ask for, of a pool that is deleted, another address than
// the one that is asked for, and what is there twice. What a pod has is never surplus.
func (n needs) surplus(have []api.IPAllocation) (out []api.IPAllocation) {
	have = slices.Clone(have)
	allocation.Standing(have)
	seen := map[slot]bool{}
	named := n.named(n.missing(nil))
	for _, a := range have {
		s, addr, ok := slotOf(a)
		if !ok {
			continue
		}
		want, asks := named[s]
		wanted := n.wants(s) && (!asks || want == addr)
		if n.err != nil { // what it asks for is not known: maybe soon what it was
			wanted = s.ordinal >= n.first && s.ordinal < n.first+n.n
		}
		p, there := n.pools[a.Spec.Pool]
		wanted = wanted && !seen[s] && there && p.DeletionTimestamp == nil
		if seen[s] = true; !wanted && a.Spec.Phase == api.PhaseReserved {
			out = append(out, a)
		}
	}
	return out
}

// named are the addresses that the set asks for.
func (n needs) named(slots []slot) map[slot]netip.Addr {
	out := map[slot]netip.Addr{}
	if len(n.asked.PodIPs) == 0 {
		return out
	}
	for _, s := range slots {
		of, err := n.asked.Of(s.ordinal - n.first)
		if err != nil { // fewer addresses than pods: this one gets none
			out[s] = netip.Addr{}
		}
		for _, addr := range of.PodIPs {
			if addr.Is4() == (s.family == 4) {
				out[s] = addr
			}
		}
	}
	return out
}

// choose returns the pools that the set asks for.
func (n needs) choose(others pool.Others) ([]pool.Pool, error) {
	return n.asked.Choose(selection.Known{IPPools: n.pools, Others: others})
}

func (n needs) reservation(ordinal int) *api.AllocationReservation {
	return &api.AllocationReservation{Kind: api.KindStatefulSet, Namespace: n.set.Namespace, Name: n.set.Name,
		UID: string(n.set.UID), Ordinal: ordinal}
}

func (n needs) allocation(c choice) api.IPAllocation {
	return api.IPAllocation{ObjectMeta: metav1.ObjectMeta{Name: allocation.Name("", c.addr)},
		Spec: api.IPAllocationSpec{Address: c.addr.String(), Pool: c.pool, Phase: api.PhaseReserved,
			Reservation: n.reservation(c.ordinal)}}
}

func allocationsOf(n needs, made []choice) (out []api.IPAllocation) {
	for _, c := range made {
		out = append(out, n.allocation(c))
	}
	return out
}

// podOf is the name of the pod of an ordinal.
func (n needs) podOf(ordinal int) string { return n.set.Name + "-" + strconv.Itoa(ordinal) }

// lacks says which pods have no address reserved.
func (n needs) lacks(rest []slot) string {
	const most = 5
	var pods []string
	for _, s := range rest {
		if pod := n.podOf(s.ordinal); !slices.Contains(pods, pod) {
			pods = append(pods, pod)
		}
	}
	count := len(pods)
	if count > most {
		pods = append(pods[:most:most], fmt.Sprintf("and %d more", count-most))
	}
	why := "no address is free in IPPool " + strings.Join(n.asked.Pools, ", ") + ": extend spec.ipRanges, or scale the StatefulSet down"
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

// slotOf is what an allocation with a reservation fills; false for an address of an isolated network.
func slotOf(a api.IPAllocation) (slot, netip.Addr, bool) {
	scope, addr, err := allocation.ParseName(a.Name)
	if err != nil || scope != "" {
		return slot{}, addr, false
	}
	family := 6
	if addr.Is4() {
		family = 4
	}
	return slot{a.Spec.Reservation.Ordinal, family}, addr, true
}

// addressesOf are the slots that are filled.
func addressesOf(have []api.IPAllocation) map[slot]netip.Addr {
	have = slices.Clone(have)
	allocation.Standing(have)
	out := map[slot]netip.Addr{}
	for _, a := range have {
		if s, addr, ok := slotOf(a); ok && !out[s].IsValid() {
			out[s] = addr
		}
	}
	return out
}

// usedIn are all addresses of pods' that anybody holds, sorted.
func usedIn(all []*api.IPAllocation, more []api.IPAllocation) []netip.Addr {
	out := count(all).addresses[""]
	for _, a := range more {
		if scope, addr, err := allocation.ParseName(a.Name); err == nil && scope == "" {
			out = append(out, addr)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}
