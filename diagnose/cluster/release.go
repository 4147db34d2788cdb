package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/allocation"
	"github.com/fairlead-cni/fairlead/kube"
)

// releasedCooling is how long an address that was released manually cools: neighbours may have its owner in their ARP
// caches, and an agent that serves the owner after all allocates it to the owner again.
const releasedCooling = time.Minute

// EvidenceOf reads the evidence for the owner of the named allocation. The error is allocation.ErrNotFound if there is
// no such allocation.
func EvidenceOf(ctx context.Context, client *kube.Client, name string) (Evidence, error) {
	a, err := allocation.NewKubernetes(client.Dynamic).Get(ctx, name)
	if errors.Is(err, allocation.ErrNotFound) {
		return Evidence{}, err
	}
	if err != nil {
		return Evidence{}, Explain("IPAllocation "+name, err)
	}
	parts := []Part{Nodes, Pods, Leader}
	if a.Spec.Phase == api.PhaseReserved { // the agent, whose rights these may be, may not read ReservationOwners
		parts = append(parts, ReservationOwners)
	}
	v := Read(ctx, client, parts...)
	if err := v.Missing(Nodes, Pods, ReservationOwners); err != nil {
		return Evidence{}, err
	}
	v.Allocations = []api.IPAllocation{a}
	return v.Evidences()[0], nil
}

// Release releases the allocation of e, if it is unchanged, and writes an Event about it. reason is the user's. The
// second result says why the Event could not be written.
func Release(ctx context.Context, client *kube.Client, e Evidence, reason string) (err, untold error) {
	store, a := allocation.NewKubernetes(client.Dynamic), e.Allocation
	switch a.Spec.Phase {
	case api.PhaseAllocated:
		err = allocation.Free(ctx, store, a, releasedCooling)
	default: // no pod has it: a conflict, cooling, or a reservation is deleted
		err = store.Delete(ctx, a)
	}
	switch {
	case errors.Is(err, allocation.ErrConflict), errors.Is(err, allocation.ErrNotFound):
		return fmt.Errorf("%s was changed or released since it was shown: run the command again (%w)", a.Name, err), nil
	case err != nil:
		return Explain("IPAllocation "+a.Name, err), nil
	}
	return nil, writeReleased(ctx, client, e, reason)
}

// EventReleased is the reason of the Event about an IPPool when one of its addresses was released manually.
const EventReleased = "AddressReleased"

// writeReleased writes the Event about the pool, as the owner may no longer exist.
func writeReleased(ctx context.Context, client *kube.Client, e Evidence, reason string) error {
	a := e.Allocation
	pool, err := client.Metadata.Resource(api.PoolResource).Get(ctx, a.Spec.Pool, metav1.GetOptions{})
	uid := types.UID("")
	if err == nil {
		uid = pool.UID
	}
	message := fmt.Sprintf("%s was released manually (fairleadctl ipam release): %s, %s", a.Name, a.Spec.Phase, e.Owner)
	if reason != "" {
		message += ". Reason: " + reason
	}
	if len(message) > 1000 { // the API server accepts 1024 bytes
		message = message[:1000]
	}
	now := metav1.Now()
	_, err = client.Kubernetes.CoreV1().Events(metav1.NamespaceDefault).Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: a.Spec.Pool + ".", Namespace: metav1.NamespaceDefault},
		InvolvedObject: corev1.ObjectReference{APIVersion: api.PoolGroup + "/" + api.PoolVersion, Kind: api.PoolKind,
			Name: a.Spec.Pool, UID: uid},
		Type: corev1.EventTypeNormal, Reason: EventReleased, Message: message, Count: 1,
		FirstTimestamp: now, LastTimestamp: now,
		Source:              corev1.EventSource{Component: "fairleadctl"},
		ReportingController: "fairleadctl"}, metav1.CreateOptions{})
	return err
}
