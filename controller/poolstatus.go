package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/record"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/controller/poolstatus"
	"github.com/fairlead-cni/fairlead/ipam/allocator"
)

// poolStatus maintains usage, conditions and free map of each IPPool, keeps a deleted pool until no address of it is in
// use, and removes expired allocations. It writes only what differs from what it has read.
type poolStatus struct {
	client      dynamic.ResourceInterface
	allocations dynamic.ResourceInterface
	world       *world
	news        <-chan struct{}
	metrics     *metrics
	events      record.EventRecorder
	warning     poolstatus.Warning
	states      cached[[]poolstatus.State]
	every       api.ControllerIntervals
	log         logr.Logger
}

// run runs passes until ctx ends. A pass writes each pool once at most.
func (s *poolStatus) run(ctx context.Context) {
	for {
		if s.world.synced() {
			s.pass(ctx)
		}
		if !pause(ctx, s.every.Pass, nil) || !pause(ctx, s.every.PassAtLeast-s.every.Pass, s.news) {
			return
		}
	}
}

// pause waits for d, or until wake. It returns false when ctx has ended.
func pause(ctx context.Context, d time.Duration, wake <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-wake:
	case <-timer.C:
	}
	return true
}

// pass makes one pass. What failed is retried by the next one.
func (s *poolStatus) pass(ctx context.Context) {
	states := s.read()
	reports := poolstatus.Of(states, s.warning)
	s.warning.Grows.Record(time.Now(), reports)
	s.metrics.set(reports, s.warning.Grows)
	for _, state := range states {
		obj, _, _ := s.world.pools.GetByKey(state.Pool.Name) // maybe with a newer resourceVersion
		p, found := obj.(*api.IPPool)
		if !found || !state.IsOf(p) {
			continue // another pass follows
		}
		if err := s.write(ctx, p, reports[p.Name]); err != nil && ctx.Err() == nil && !passing(err) {
			s.log.Error(err, "writing IPPool failed, will retry", "pool", p.Name)
		}
	}
	s.sweep(ctx, listOf[api.IPAllocation](s.world.allocations))
}

// read returns the states of all pools. It lists what they are computed from after it has looked at the count of
// changes: what arrives in between is read again.
func (s *poolStatus) read() []poolstatus.State {
	return s.states.of(s.world, func() []poolstatus.State {
		return poolstatus.Read(listOf[api.IPPool](s.world.pools), listOf[api.IPAllocation](s.world.allocations),
			s.world.others())
	})
}

// passing reports whether an error is due to a concurrent change, which the informers will deliver.
func passing(err error) bool { return apierrors.IsConflict(err) || apierrors.IsNotFound(err) }

func listOf[T any](store interface{ List() []any }) []*T {
	var out []*T
	for _, obj := range store.List() {
		if t, ok := obj.(*T); ok {
			out = append(out, t)
		}
	}
	return out
}

// write updates a pool's object if it differs: its finalizer, else its status.
func (s *poolStatus) write(ctx context.Context, p *api.IPPool, now api.IPPoolStatus) error {
	kept := slices.Contains(p.Finalizers, api.PoolFinalizer)
	switch {
	case p.DeletionTimestamp == nil && !kept:
		return s.patch(ctx, p, map[string]any{"metadata": map[string]any{
			"resourceVersion": p.ResourceVersion, "finalizers": append(slices.Clone(p.Finalizers), api.PoolFinalizer)}})
	case p.DeletionTimestamp != nil && kept && now.Usage.Used == 0:
		return s.removeFinalizer(ctx, p)
	}
	if reflect.DeepEqual(p.Status.Usage, now.Usage) && slices.Equal(p.Status.FreeMap, now.FreeMap) &&
		reflect.DeepEqual(p.Status.Conditions, now.Conditions) {
		return nil
	}
	err := s.patch(ctx, p, map[string]any{
		"metadata": map[string]any{"resourceVersion": p.ResourceVersion},
		"status":   map[string]any{"usage": now.Usage, "freeMap": now.FreeMap, "conditions": now.Conditions}}, "status")
	if err == nil {
		s.metrics.writes.Inc()
		s.logChange(p, now)
	}
	return err
}

// removeFinalizer removes the finalizer of a deleted pool after one more list: an agent may have allocated an
// address just before it saw the deletion.
func (s *poolStatus) removeFinalizer(ctx context.Context, p *api.IPPool) error {
	list, err := s.allocations.List(ctx, metav1.ListOptions{Limit: 1,
		FieldSelector: fields.OneTermEqualSelector(api.AllocationPoolField, p.Name).String()})
	if err != nil || len(list.Items) > 0 {
		return err
	}
	others := slices.DeleteFunc(slices.Clone(p.Finalizers), func(f string) bool { return f == api.PoolFinalizer })
	err = s.patch(ctx, p, map[string]any{"metadata": map[string]any{
		"resourceVersion": p.ResourceVersion, "finalizers": others}})
	if err == nil {
		s.log.Info("removed the finalizer of a deleted pool: none of its addresses is in use", "pool", p.Name)
	}
	return err
}

func (s *poolStatus) patch(ctx context.Context, p *api.IPPool, change map[string]any, subresources ...string) error {
	body, err := json.Marshal(change)
	if err != nil {
		return err
	}
	_, err = s.client.Patch(ctx, p.Name, types.MergePatchType, body, metav1.PatchOptions{}, subresources...)
	if err != nil {
		return fmt.Errorf("writing IPPool %s: %w", p.Name, err)
	}
	return nil
}

// logChange logs changes of conditions; a fault is also an Event of the pool.
func (s *poolStatus) logChange(p *api.IPPool, now api.IPPoolStatus) {
	for _, c := range now.Conditions {
		same := func(b metav1.Condition) bool { return b.Type == c.Type && b.Status == c.Status && b.Reason == c.Reason }
		if !slices.ContainsFunc(p.Status.Conditions, same) {
			s.log.Info("pool", "pool", p.Name, "condition", c.Type, "status", c.Status, "reason", c.Reason, "message", c.Message)
			if c.Status == metav1.ConditionTrue && c.Type != api.PoolReady {
				s.events.Event(&corev1.ObjectReference{APIVersion: api.PoolGroup + "/" + api.PoolVersion, Kind: api.PoolKind,
					Name: p.Name, UID: p.UID}, corev1.EventTypeWarning, api.EventPool+c.Type, c.Message)
			}
		}
	}
}

// sweepMost bounds how many allocations a pass removes.
const sweepMost = 100

// sweep removes expired allocations without an owner, so that they do not count as used.
func (s *poolStatus) sweep(ctx context.Context, allocations []*api.IPAllocation) {
	now := time.Now()
	over := slices.DeleteFunc(allocations, func(a *api.IPAllocation) bool { return !allocator.Expired(*a, now) })
	slices.SortFunc(over, func(a, b *api.IPAllocation) int { return strings.Compare(a.Name, b.Name) })
	for _, a := range over[:min(len(over), sweepMost)] {
		err := s.allocations.Delete(ctx, a.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &a.UID, ResourceVersion: &a.ResourceVersion}})
		switch {
		case err == nil:
			s.log.Info("released address", "address", a.Spec.Address, "pool", a.Spec.Pool, "phase", a.Spec.Phase,
				"owner", a.Spec.Owner.String())
		case ctx.Err() == nil && !passing(err):
			s.log.Error(err, "releasing address failed, will retry", "address", a.Spec.Address)
		}
	}
}
