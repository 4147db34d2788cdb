package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/nodecidr"
)

// Status of ranges.

// writeRange updates the object of a range if it differs.
func (n *nodeIPAM) writeRange(ctx context.Context, u nodecidr.Usage) error {
	name := nodecidr.Name(u.Range.Cluster)
	spec := api.PodCIDRRangeSpec{ClusterCIDR: u.Range.Cluster.String(), NodeMask: u.Range.Mask}
	obj, _, _ := n.ranges.GetByKey(name)
	had, ok := obj.(*api.PodCIDRRange)
	if !ok || had.Spec != spec {
		return n.makeRange(ctx, name, spec, had)
	}
	status := api.PodCIDRRangeStatus{Used: saturated(u.Used), Total: saturated(u.Total),
		Conditions: slices.Clone(had.Status.Conditions)}
	for _, c := range n.conditions(u) {
		meta.SetStatusCondition(&status.Conditions, c)
	}
	if reflect.DeepEqual(had.Status, status) {
		return nil
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": had.ResourceVersion},
		"status": status})
	if err != nil {
		return err
	}
	_, err = n.client.Resource(api.RangeResource).Patch(ctx, name, types.MergePatchType, body, metav1.PatchOptions{}, "status")
	return err
}

// makeRange creates the object of a range; one with another spec is deleted first.
func (n *nodeIPAM) makeRange(ctx context.Context, name string, spec api.PodCIDRRangeSpec, had *api.PodCIDRRange) error {
	if had != nil {
		return n.client.Resource(api.RangeResource).Delete(ctx, name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &had.UID}})
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&api.PodCIDRRange{
		TypeMeta:   metav1.TypeMeta{APIVersion: api.AllocationGroup + "/" + api.AllocationVersion, Kind: api.PodCIDRRangeKind},
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec})
	if err != nil {
		return err
	}
	u := &unstructured.Unstructured{Object: object}
	_, err = n.client.Resource(api.RangeResource).Create(ctx, u, metav1.CreateOptions{})
	return err
}

// removeRanges deletes the objects of ranges that the config no longer has.
func (n *nodeIPAM) removeRanges(ctx context.Context) {
	for _, r := range listOf[api.PodCIDRRange](n.ranges) {
		if slices.ContainsFunc(n.cfg.ClusterCIDRs, func(c netip.Prefix) bool { return nodecidr.Name(c) == r.Name }) {
			continue
		}
		err := n.client.Resource(api.RangeResource).Delete(ctx, r.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &r.UID}})
		if err != nil && ctx.Err() == nil && !passing(err) {
			n.log.Error(err, "removing PodCIDRRange failed, will retry", "range", r.Name)
		}
	}
}

// forgetRanges deletes the objects of ranges that a former NodeIPAM has left: they state that podCIDRs are assigned
// from them.
func forgetRanges(ctx context.Context, o Options) {
	for {
		err := o.Client.Resource(api.RangeResource).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
		if err == nil || apierrors.IsNotFound(err) { // the CustomResourceDefinition is not installed
			return
		}
		if ctx.Err() == nil {
			o.Log.Error(err, "removing the PodCIDRRanges of disabled NodeIPAM failed, will retry")
		}
		if !pause(ctx, o.Intervals.OtherAllocator, nil) {
			return
		}
	}
}

func saturated(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

// conditions are those of a range.
func (n *nodeIPAM) conditions(u nodecidr.Usage) []metav1.Condition {
	left := u.Total - u.Used
	ready := metav1.Condition{Type: api.RangeReady, Status: metav1.ConditionTrue, Reason: api.ReasonAvailable,
		Message: "podCIDRs are assigned from it"}
	switch {
	case n.other != "":
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, api.ReasonOtherAllocatorActive, stopped(n.other)
	case left == 0:
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, api.ReasonExhausted,
			fmt.Sprintf("all %d podCIDRs are in use. Add another CIDR to nodeIPAM.clusterCIDRs", u.Total)
	}
	few := metav1.Condition{Type: api.RangeNearlyExhausted, Status: metav1.ConditionFalse, Reason: api.ReasonAvailable,
		Message: "10 percent or more is free"}
	if left < (u.Total+9)/10 {
		few.Status, few.Reason, few.Message = metav1.ConditionTrue, api.ReasonNearlyExhausted,
			"less than 10 percent is free. Add another CIDR to nodeIPAM.clusterCIDRs before it is full"
	}
	return []metav1.Condition{ready, few}
}
