package controller

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/fairlead-cni/fairlead/api"
	"github.com/fairlead-cni/fairlead/ipam/nodecidr"
)

// This file releases claims of Nodes that are gone, or have other podCIDRs; or hands them over to a Node of the same
// name that gets no other.

// staleInPass is how many Nodes are looked at in a pass for their stale claims, each with at most two reads: thousands
// may have been deleted at once, and their claims wait for their pods.
const staleInPass = 20

// releaseStale looks at some of the Nodes of stale claims, and removes or hands over the claims that the API server
// confirms to be stale.
func (n *nodeIPAM) releaseStale(ctx context.Context, plan nodecidr.Plan) {
	of, heirs := map[string][]nodecidr.Claim{}, map[string]nodecidr.Waiting{}
	for _, w := range plan.Waiting {
		heirs[w.UID] = w
	}
	var uids []string
	for _, c := range plan.Release {
		if of[c.UID] == nil {
			uids = append(uids, c.UID)
		}
		of[c.UID] = append(of[c.UID], c)
	}
	for _, uid := range n.vacancies.Due(uids, staleInPass) {
		if err := n.release(ctx, uid, of[uid], heirs); err != nil && ctx.Err() == nil && !passing(err) {
			n.log.Error(err, "releasing PodCIDRClaims failed, will retry", "node", of[uid][0].Node)
		}
	}
}

// release removes those of a Node's claims whose podCIDRs it has no more: it has others, or is gone and its pods, too.
// If a Node of the same name waits, that gets them instead, also while their pods run on its machine: there they are in
// use on one machine all the time.
func (n *nodeIPAM) release(ctx context.Context, uid string, claims []nodecidr.Claim,
	heirs map[string]nodecidr.Waiting) error {
	var podCIDRs []netip.Prefix
	for _, c := range claims {
		podCIDRs = append(podCIDRs, c.PodCIDR)
	}
	found, err := n.vacancies.Look(ctx, claims[0].Node, uid, podCIDRs)
	if err != nil {
		return err
	}
	var heir nodecidr.Waiting
	if now := found.Node; now != nil && now.DeletionTimestamp == nil && len(now.Spec.PodCIDRs) == 0 {
		heir = heirs[string(now.UID)]
	}
	for _, p := range slices.Concat(found.Vacant, found.Stayed) {
		obj, _, _ := n.claims.GetByKey(nodecidr.Name(p))
		claim, ok := obj.(*api.PodCIDRClaim)
		switch {
		case !ok || claim.Spec.NodeUID != uid:
		case slices.Contains(heir.Former, p):
			err = n.handOver(ctx, *claim, heir.UID)
		case slices.Contains(found.Vacant, p):
			err = n.remove(ctx, claim)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// handOver makes a claim that of another Node of the same name, in one write: at no time is the podCIDR anybody else's.
func (n *nodeIPAM) handOver(ctx context.Context, claim api.PodCIDRClaim, uid string) error {
	claim.APIVersion, claim.Kind = api.AllocationGroup+"/"+api.AllocationVersion, api.PodCIDRClaimKind
	claim.Spec.NodeUID = uid
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&claim)
	if err != nil {
		return err
	}
	_, err = n.client.Resource(api.ClaimResource).Update(ctx, &unstructured.Unstructured{Object: object},
		metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("handing over the claim %s: %w", claim.Name, err)
	}
	n.log.Info("a Node gets back the podCIDR of the one of its name before it", "podCIDR", claim.Spec.PodCIDR,
		"node", claim.Spec.Node)
	return nil
}

// remove removes a claim, unless it has been handed over meanwhile.
func (n *nodeIPAM) remove(ctx context.Context, claim *api.PodCIDRClaim) error {
	err := n.client.Resource(api.ClaimResource).Delete(ctx, claim.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &claim.UID, ResourceVersion: &claim.ResourceVersion}})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("removing the claim %s: %w", claim.Name, err)
	}
	n.log.Info("released podCIDR", "podCIDR", claim.Spec.PodCIDR, "node", claim.Spec.Node)
	return nil
}
