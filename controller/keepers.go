package controller

import (
	"context"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/controller/ordinals"
)

// resourceOf is the resource of a kind that addresses can be reserved for.
func resourceOf(kind string) (r schema.GroupVersionResource, known bool) {
	switch kind {
	case api.KindStatefulSet:
		return statefulSetResource(), true
	case api.KindDeployment:
		return schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}, true
	case api.KindReplicaSet:
		return schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "replicasets"}, true
	case api.KindVM:
		return schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachines"}, true
	case api.KindVMI:
		return schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachineinstances"}, true
	}
	return r, false
}

// releaseReservations ends the reservations for objects that are gone. Their absence from the cache is no proof: the
// API server is read. A pod keeps the address that it has.
func (s *statefulSets) releaseReservations(ctx context.Context, kept map[string][]api.IPAllocation,
	sets map[string]bool) {
	due := time.Since(s.checkedAt) >= s.every.Keepers
	if due {
		s.checkedAt = time.Now()
	}
	for uid, list := range kept {
		r := *list[0].Spec.Reservation
		if sets[uid] || r.Kind != api.KindStatefulSet && !due {
			continue
		}
		gone, requests, err := s.readOwner(ctx, r)
		if err != nil {
			if ctx.Err() == nil {
				s.log.Error(err, "cannot determine whether the owner is gone; keeping its reservations", "owner", r.String())
			}
			continue
		}
		for _, a := range list {
			switch {
			case gone:
				s.unreserve(ctx, a, "owner is gone")
			case !requests && a.Spec.Phase == api.PhaseReserved:
				s.unreserve(ctx, a, "owner no longer requests it")
			}
		}
	}
}

// readOwner reads from the API server whether the object of reservation r is gone, and whether it still requests
// reserved addresses.
func (s *statefulSets) readOwner(ctx context.Context, r api.AllocationReservation) (gone, requests bool, err error) {
	resource, known := resourceOf(r.Kind)
	if !known {
		return false, true, nil // maybe of a later version of Fairlead
	}
	u, err := s.client.Resource(resource).Namespace(r.Namespace).Get(ctx, r.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return true, false, nil
	case err != nil:
		return false, true, err
	case string(u.GetUID()) != r.UID:
		return true, false, nil
	case r.Kind == api.KindStatefulSet: // not in the cache yet
		return false, true, nil
	}
	at := []string{"spec", "template", "metadata", "annotations"}
	if r.Kind == api.KindVMI {
		at = at[2:]
	}
	annotations, _, err := unstructured.NestedStringMap(u.Object, at...)
	_, requests = annotations[api.AnnotationSticky]
	return false, requests, err
}

// adopt reserves for the set the addresses that its pods already have: pods that are older than the set (deleted with
// --cascade=orphan and recreated), or than its annotation. The API server has the owner of each pod.
func (s *statefulSets) adopt(ctx context.Context, n ordinals.Needs, missing []ordinals.Slot, have []api.IPAllocation) (
	[]ordinals.Slot, []api.IPAllocation, error) {
	var rest []ordinals.Slot
	for _, want := range missing {
		a, found, err := s.adoptOne(ctx, n, want)
		if err != nil {
			return missing, have, err
		}
		if !found {
			rest = append(rest, want)
			continue
		}
		have = append(have, a)
	}
	return rest, have, nil
}

func (s *statefulSets) adoptOne(ctx context.Context, n ordinals.Needs, want ordinals.Slot) (
	api.IPAllocation, bool, error) {
	for _, a := range s.heldBy(n.Set.Namespace, n.PodOf(want.Ordinal)) {
		if a.Spec.Reservation != nil && a.Spec.Reservation.UID == string(n.Set.UID) {
			continue
		}
		a.Spec.Reservation = n.Reservation(want.Ordinal)
		if is, _, ok := ordinals.SlotOf(a); !ok || is != want || !slices.Contains(n.Requested.Pools, a.Spec.Pool) {
			continue
		}
		pod, err := s.client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "pods"}).
			Namespace(n.Set.Namespace).Get(ctx, a.Spec.Owner.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return a, false, err
		}
		of := metav1.GetControllerOf(pod)
		if string(pod.GetUID()) != a.Spec.Owner.PodUID || of == nil || of.UID != n.Set.UID {
			continue
		}
		a, err = s.store.Update(ctx, a)
		if err != nil {
			return a, false, err
		}
		s.log.Info("reserved address", "address", a.Spec.Address, "pool", a.Spec.Pool, "owner",
			a.Spec.Reservation.String())
		return a, true, nil
	}
	return api.IPAllocation{}, false, nil
}

// heldBy are the addresses of the pod of that name.
func (s *statefulSets) heldBy(namespace, name string) (out []api.IPAllocation) {
	for _, a := range listOf[api.IPAllocation](s.world.allocations) {
		if a.Spec.Phase == api.PhaseAllocated && a.Spec.Owner.Namespace == namespace && a.Spec.Owner.Name == name {
			out = append(out, *a)
		}
	}
	return out
}
